#!/usr/bin/env bash
# All tables and figures of both papers.
#
#     bash scripts/all_tables.sh --dry_run                                 # the commands and their cost
#     bash scripts/all_tables.sh --scale small                             # 0.8M parameters
#     bash scripts/all_tables.sh --scale smoke --encodings cable rope      # does every script run?
#
# Runs the experiments whose header starts with the name of a paper, with these flags; a second run
# resumes. Failed scripts are listed at the end.

source "$(dirname "$0")/activate.sh"
if [[ " $* " == *" --help "* ]]; then exec python run_experiment.py --help; fi
failed=()
for script in $(grep -lE '^# (CABLE|Sandwich)[ ,:(]' scripts/*.sh); do
    echo "== $script"
    status=0
    ends_with_script bash "$script" "$@" || status=$?
    if [ $status -gt 128 ]; then exit $status; fi # interrupted
    if [ $status != 0 ]; then failed+=("$script"); fi
done
if [ ${#failed[@]} != 0 ]; then
    printf 'error: failed: bash %s\n' "${failed[@]}" >&2
    exit 1
fi
