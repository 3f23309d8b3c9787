# Start of an experiment script: source "$(dirname "$0")/activate.sh"
#
# Stops at the first error, goes to the repository's root, and activates .venv if there is one and no
# other environment is active.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -n "${SLURM_JOB_ID:-}" ]; then trap : TERM; fi # Slurm signals all processes: wait for them
if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then
    source .venv/bin/activate
fi

# option NAME DEFAULT...: print the values of --NAME in the script's flags, else the defaults, a line each.
flags=("$@")
option() {
    local name=$1 word found=() is_in=0
    for word in "${flags[@]}"; do
        case $word in
            --) break ;;
            "--$name="*) is_in=1 found=("${word#*=}") ;;
            "--$name") is_in=1 found=() ;;
            --*) is_in=0 ;;
            *) if [ $is_in = 1 ]; then found+=("$word"); fi ;;
        esac
    done
    if [ ${#found[@]} = 0 ]; then found=("${@:2}"); fi
    printf '%s\n' "${found[@]}"
}
scale=$(option scale full)

# pick FULL SMALL SMOKE: print the word of this scale. at_scale LENGTHS: lengths as in 512,1024 at it.
pick() { case $scale in full) echo "$1" ;; small) echo "$2" ;; *) echo "${3-$2}" ;; esac; }
at_scale() { tr , '\n' <<<"$1" | awk -v d="$(pick 1 4 32)" '{print int($1 / d)}' | paste -sd,; }

# ends_with_script COMMAND...: run a command that gets SIGTERM when the script ends.
ends_with_script() { setpriv --pdeathsig TERM "$@"; }

# experiment FLAGS...: call run_experiment.py. Sets runs, those that are trained, and their data and
# split of evaluations. A failed job does not stop the script, which ends with: exit $failed
failed=0 runs=() data="" split=""
experiment() {
    local status=0 variables
    variables=$(mktemp)
    EXPERIMENT_VARIABLES=$variables ends_with_script python run_experiment.py "$@" || status=$?
    if [ -s "$variables" ]; then { read -r split && read -r data && mapfile -t runs; } <"$variables"; fi
    rm "$variables"
    if [ $status -gt 1 ] || [[ " $* " == *" --help "* ]]; then exit $status; fi
    # Without trainings, later stages have nothing to name.
    if [ $status = 1 ] && [[ " $* " == *" --train "* ]] && [ ${#runs[@]} = 0 ]; then exit 1; fi
    failed=$((failed | status))
}

# The costs of a script's dry runs add up in a file that ends with the script.
if [[ " $* " == *" --dry_run "* ]] && [ -z "${COST_LEDGER:-}" ]; then
    ledger=$(mktemp) && exec 9<>"$ledger" && rm "$ledger"
    export COST_LEDGER=/proc/$$/fd/9
fi

# line WORD...: print a command for --commands.
line() { printf '%q ' "$@" && echo; }
