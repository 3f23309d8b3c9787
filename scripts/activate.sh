# Start of an experiment script: source "$(dirname "$0")/activate.sh"
#
# Stops at the first error, goes to the repository's root, and activates .venv if there is one and no
# other environment is active. run_experiment.py ends with any of EXPERIMENT_SCRIPTS.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXPERIMENT_SCRIPTS="${EXPERIMENT_SCRIPTS:-} $$" # this one, and those that called it
if [ -n "${SLURM_JOB_ID:-}" ]; then trap : TERM; fi # Slurm signals all processes: wait for them
if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then
    source .venv/bin/activate
fi
