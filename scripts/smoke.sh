#!/usr/bin/env bash
# Run the papers' experiment scripts at SCALE=smoke on the CPU, to see that all of them work.
#
#     bash scripts/smoke.sh
#     ENCODINGS="cable rope" bash scripts/smoke.sh     # about six minutes of one core

source "$(dirname "$0")/common.sh"
install_requirements requirements.txt requirements-retrieval.txt
export SCALE=smoke CUDA_VISIBLE_DEVICES=
for script in scripts/{table,figure,v1_,sandwich,generalization,reproduction,rope_extended,recall}*.sh; do
    if [ -n "${DRY_RUN:-}" ]; then run bash "$script" && continue; fi
    echo "== $script"
    bash "$script" >"${LOG:=$(mktemp)}" 2>&1 || { tail -n 20 "$LOG"; failed+=("$script"); }
done
finish
