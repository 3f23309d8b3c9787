# What every script opens with: source "$(dirname "$0")/common.sh"
# Works from the repository's root, in the active virtual environment or in .venv, which `install` makes.

set -euo pipefail
trap 'exit 130' INT    # a training ends well when it is interrupted: it must not be taken for done, and the next one started
trap 'exit 143' TERM
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_torch='import torch; v = torch.__version__.split("."); assert (int(v[0]), int(v[1])) >= (2, 11)'

# install FILE...: the requirements in these files; an installed torch >= 2.11, of whatever build, stays as it is.
install() {
    if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
        if [ ! -x .venv/bin/pip ]; then
            python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
                { echo "error: $(python3 --version) is too old: install Python 3.11 or later" >&2; exit 2; }
            local site=""
            if python3 -c "$has_torch" 2>/dev/null; then site=--system-site-packages; fi
            python3 -m venv $site .venv ||
                { echo "error: no virtual environment could be made: install python3-venv, or activate one" >&2; exit 2; }
        fi
        source .venv/bin/activate
    fi
    local requirements
    requirements=$(mktemp)
    if python -c "$has_torch" 2>/dev/null; then
        cat "$@" | grep -v '^torch' >"$requirements"
    else
        cat "$@" >"$requirements"
    fi
    python -m pip install --quiet --disable-pip-version-check -r "$requirements"
    rm "$requirements"
}
