#!/usr/bin/env bash
# CABLE, version 1, figures 7 and 8: bias matrices of cable-v1 and alibi.
#
# Means over heads on 512 tokens, and every head of every layer on four tokens. Uses the trainings
# of v1_figure3_6.sh at 512 tokens.
#
# Cost: data sets: 1, trainings: 2, plot.py (not estimated): 14; 3.8e17 FLOPs; 0.26 h of one H100;
# disk 3.5 GB; download 0.3 GB. The trainings are those of v1_figure3_6.sh.

source "$(dirname "$0")/activate.sh"
common=(--name v1_figure7_8 --data wikitext103)
experiment "${common[@]}" --train wikitext103_tiny --block_size 512 \
    --train_flags "$(pick "--steps 5000" "")" --encodings cable-v1 alibi "$@"
experiment "${common[@]}" --commands - "$@" < <(
    for run in "${runs[@]}"; do
        name=${run##*/}
        line plot.py biases "$run" --tokens "$(at_scale 512)" --mean --out "$name-figure7.png"
        for layer in $(seq 0 "$(pick 5 3 1)"); do
            line plot.py biases "$run" --tokens 4 --layer "$layer" --out "$name-figure8-layer$layer.png"
        done
    done
)
exit $failed
