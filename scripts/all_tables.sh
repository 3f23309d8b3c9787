#!/usr/bin/env bash
# All tables and figures of both papers, and an index page of their claims.
#
#     bash scripts/all_tables.sh DRY_RUN=1             # the commands, and the cost of all together
#     bash scripts/all_tables.sh SCALE=small           # 0.8M parameters
#     bash scripts/all_tables.sh SCALE=smoke ENCODINGS="cable rope"      # does every script run?
#
# Runs the experiments in this folder whose header starts with the name of a paper; at SCALE=smoke
# all experiments, on the CPU. Not authors_checkpoint.sh, which needs a file. Settings go to every
# script. Finished steps are skipped, so that scripts share trainings and a second run resumes. After
# a failure the next script starts; failures are listed at the end. The index is RUNS/SCALE/claims.md.

source "$(dirname "$0")/common.sh"
requirements+=(requirements-retrieval.txt) encodings=${ENCODINGS:-cable}
header='^# \(CABLE\|Sandwich\)'
if [ "$SCALE" = smoke ]; then
    export CUDA_VISIBLE_DEVICES=
    header='^# '
fi
check_settings ${DATA:+--data "$DATA"}
collected=$(mktemp -d)
trap 'rm -r "$collected"' EXIT
export COLLECT_IN=$collected NPROC JOBS
for script in $(grep -l '^experiment ' scripts/*.sh); do
    if ! sed -n 2p "$script" | grep -q "$header"; then continue; fi
    if [ "$SCALE" = full ] && grep -q 'has no SCALE=full' "$script"; then continue; fi
    if [ "$script" = scripts/authors_checkpoint.sh ]; then continue; fi
    echo "== $script"
    status=0
    bash "$script" || status=$?
    if [ $status -gt 128 ]; then exit $status; fi # interrupted
    if [ $status = 0 ]; then continue; fi
    failed+=("bash $script")
    if [ -f "$collected/failed" ]; then
        mapfile -t -O ${#failed[@]} failed <"$collected/failed"
        rm "$collected/failed"
    fi
done
unset COLLECT_IN
mkdir -p "$RUNS/$SCALE"
run python report.py --index "$RUNS/$SCALE" $(at_full_scale results) --out_dir "$RUNS/$SCALE" || true
if [ -f "$collected/planned" ]; then mapfile -t -d '' planned <"$collected/planned"; fi
finish
