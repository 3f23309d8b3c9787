# Activate .venv if it exists and no environment is active: source scripts/activate.sh

if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then
    source .venv/bin/activate
fi
