#!/usr/bin/env bash
# Every experiment's script at SCALE=smoke, on the CPU: do they all run from beginning to end? With
# ENCODINGS="cable rope" it took six minutes of one core's time.
#
#     bash scripts/smoke.sh

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-retrieval.txt
export SCALE=smoke CUDA_VISIBLE_DEVICES=
for script in scripts/{table,figure,v1_,sandwich,generalization,reproduction,rope_extended,recall}*.sh; do
    echo "== $script"
    bash "$script" >"${LOG:=$(mktemp)}" 2>&1 || { tail -n 20 "$LOG"; failed+=("$script"); }
done
finish
