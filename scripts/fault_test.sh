#!/usr/bin/env bash
# Cause random faults and report what was lost: signals, full disks, corrupt files, concurrent
# programs (docs/training.md).
#
#     bash scripts/fault_test.sh                                          # ten minutes
#     bash scripts/fault_test.sh --minutes 2 --only "disk full"
#     bash scripts/fault_test.sh --seed 7 --only "log.jsonl" --trial 3    # repeat one fault
#
# Cost: one CPU core for --minutes. Exit status 1 if anything was lost.

source "$(dirname "$0")/activate.sh"
source scripts/install.sh requirements.txt requirements-retrieval.txt requirements-dev.txt
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HOME=$(mktemp -d)
export PYTHONPATH=".:tests${PYTHONPATH:+:$PYTHONPATH}"
exec python -m faults "$@"
