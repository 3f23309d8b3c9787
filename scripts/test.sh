#!/usr/bin/env bash
# Run the linter, the type checker and the whole test suite on the CPU, without network access after
# the installation.
#
#     bash scripts/test.sh
#     bash scripts/test.sh tests/test_posenc.py -k cable      # arguments go to pytest alone
#
# Cost: about 11 minutes on two cores. A test that takes more than ten minutes fails, and its stack is
# printed.

source "$(dirname "$0")/activate.sh"
source scripts/install.sh requirements.txt requirements-retrieval.txt requirements-dev.txt
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
