#!/usr/bin/env bash
# The whole test suite on the CPU: bash scripts/test.sh [pytest's flags]. No network beyond the installation.

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-dev.txt
CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python -m pytest -n auto -q "$@"
