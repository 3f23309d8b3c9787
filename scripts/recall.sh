#!/usr/bin/env bash
# Recall by distance: how much a passage read earlier helps to predict it again.
#
#     bash scripts/recall.sh
#     SCALE=small DATA=data/english bash scripts/recall.sh     # docs/findings has the results
#
# Distances go up to 16 times the training length (eval_recall.py). For models that are trained to
# copy: trained_recall.sh.
#
# Cost: ten trainings of GPT-2 small on FineWeb-Edu, six of them shared with table4.sh: 60 hours
# of one H100 at 40% MFU.

source "$(dirname "$0")/common.sh"
experiment recall cable k-cable alibi kerple fox t5 rope rope+cable nope sinusoidal
prepare_data fineweb-edu
all=()
for pe in $encodings; do
    encodings=$pe
    mapfile -t lr < <(small_scale_lr "$pe")
    train fineweb-edu_small 1024 "${lr[@]}"
    evaluate_recall 256,512,1024,2048,4096,8192,16384
    all+=("${records[@]}")
done
records=("${all[@]}")
report -
finish
