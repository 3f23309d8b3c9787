# Install requirements, in the active environment or in .venv: source scripts/install.sh FILE...
#
# An installed torch >= 2.11, of whatever build, is kept. Lines "-r FILE" are left out: pass all files. Nothing is installed where a calling script
# did it (INSTALLED).

has_torch='import torch
major, minor = torch.__version__.split(".")[:2]
assert (int(major), int(minor)) >= (2, 11)'

install() {
    if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
        if [ ! -x .venv/bin/pip ]; then
            if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
                echo "error: $(python3 --version) is too old: install Python 3.11 or later" >&2
                exit 2
            fi
            local site=""
            if python3 -c "$has_torch" 2>/dev/null; then site=--system-site-packages; fi
            if ! python3 -m venv $site .venv; then
                echo "error: cannot create .venv: install python3-venv, or activate an environment" >&2
                exit 2
            fi
        fi
        source .venv/bin/activate
    fi
    local requirements
    requirements=$(mktemp)
    local omitted='^-r'
    if python -c "$has_torch" 2>/dev/null; then omitted='^-r\|^torch'; fi
    cat "$@" | grep -v "$omitted" >"$requirements"
    # --no-compile: Python compiles the modules that are imported, a small part of them.
    python -m pip install --quiet --no-compile --disable-pip-version-check -r "$requirements"
    rm "$requirements"
    export INSTALLED=1
}

if [ -z "${INSTALLED:-}" ]; then install "$@"; fi
