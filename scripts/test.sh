#!/usr/bin/env bash
# The whole test suite on the CPU: bash scripts/test.sh [pytest's flags]. No network beyond the installation.

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-retrieval.txt requirements-dev.txt
# A test that does not end within ten minutes fails, and where it stood is printed.
CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python -m pytest -n auto -q -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true "$@"
