#!/usr/bin/env bash
# Perplexity stays low far beyond the training length: is what lies back there of any use? By encoding, how much it helps to have read a
# passage up to 16 times the training length ago (eval_recall.py).
#
#     SCALE=small DATA=data/english bash scripts/recall.sh      # results/README.md tells of a run in small
#
# Cost: ten trainings of small on FineWeb-Edu, as in table 4, 60 hours of one H100 at 40% MFU.

source "$(dirname "$0")/common.sh"
experiment recall cable k-cable alibi kerple fox t5 rope rope+cable nope sinusoidal
use fineweb-edu
all=()
for pe in $encodings; do
    encodings=$pe lr=()
    if [ "$SCALE" != full ]; then case $pe in alibi | kerple | rope) lr=(--lr 8e-3) ;; t5) lr=(--lr 1.6e-2) ;; esac; fi
    train fineweb-edu_small 1024 "${lr[@]}"
    recall 256,512,1024,2048,4096,8192,16384
    all+=("${records[@]}")
done
records=("${all[@]}")
report -
finish
