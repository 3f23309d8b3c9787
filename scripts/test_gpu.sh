#!/usr/bin/env bash
# Test the programs and the Triton kernels on a GPU, and measure all speeds there.
#
#     bash scripts/test_gpu.sh                             # all parts, the decisive ones first
#     bash scripts/test_gpu.sh smoke train-small           # some parts
#     bash scripts/test_gpu.sh LIMIT=3600 BUDGETS=smoke=300,attention=400
#     bash scripts/test_gpu.sh DRY_RUN=1                   # print parts, budgets and commands
#     bash scripts/test_gpu.sh DEVICE=cpu                  # the same parts at tiny sizes, on a CPU
#
# Cost: at most LIMIT seconds (1800), the installation included; each part has a budget in seconds
# (BUDGETS). A part that fails or exceeds its budget does not stop the next one. Start the script
# again to continue: what passed is skipped.
# Writes: records and logs to RESULTS ($RUNS/test_gpu/GPU), all of them to RESULTS.tar.gz, and ten
# lines: aims met, missed or not measured. DATA: folder of shards for the trainings.
# PYTHONPATH=forgetting-transformer/src:Cable/src also measures other authors' code; see
# benchmarking/baselines.py.

own_settings="LIMIT BUDGETS RESULTS DEVICE" arguments=parts
source "$(dirname "$0")/common.sh"
LIMIT=${LIMIT:-1800}
if [[ ! $LIMIT =~ ^[1-9][0-9]{0,6}$ ]]; then
    invalid "LIMIT=$LIMIT is invalid: use a number of seconds"
fi
install_requirements requirements.txt requirements-dev.txt
left=$((LIMIT - SECONDS))
flags=(--limit $((left > 0 ? left : 1)) --runs "$RUNS")
if [ -n "${BUDGETS:-}" ]; then flags+=(--budgets "$BUDGETS"); fi
if [ -n "${RESULTS:-}" ]; then flags+=(--out "$RESULTS"); fi
if [ -n "${DEVICE:-}" ]; then flags+=(--device "$DEVICE"); fi
if [ -n "${DATA:-}" ]; then flags+=(--data "$DATA"); fi
if [ -n "${DRY_RUN:-}" ]; then flags+=(--dry_run); fi
exec python3 -m benchmarking.gpu_session "$@" "${flags[@]}"
