#!/usr/bin/env bash
# Run linter, type checker and test suite on the CPU; only the installation needs the network.
#
#     bash scripts/test.sh
#     bash scripts/test.sh tests/test_posenc.py -k cable      # arguments go to pytest alone
#
# Cost: about 6 minutes on two cores. A test of more than ten minutes fails and prints its stack.

source "$(dirname "$0")/activate.sh"
source scripts/install.sh requirements.txt requirements-{extra,retrieval,dev}.txt
if [ $# = 0 ]; then
    python -m ruff check .
    python -m ruff format --check .
    # Without warnings: it would search the network for a newer version.
    export PYRIGHT_PYTHON_IGNORE_WARNINGS=1
    python -m pyright --threads 2 --pythonpath "$(command -v python)"
fi
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1
# One worker more than cores, because many tests wait for other processes.
python -m pytest -n $(($(nproc) + 1)) --dist worksteal -q \
    -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true "$@"
