#!/usr/bin/env bash
# CABLE, version 1, figures 7 and 8: the bias matrices of cable-v1 and alibi on 512 tokens, means over heads; and of every head in
# every layer on four tokens. Tiny on WikiText-103, 5,000 steps of 131,072 tokens at 512: the trainings of v1_figure3_6.sh.
#
#     bash scripts/v1_figure7_8.sh
#
# Cost of each of the two trainings: 0.66B tokens, 1.9e17 FLOPs, 8 minutes of an H100 at 40% MFU. Disk: 0.3 GB of data, 1.1 GB a run.

source "$(dirname "$0")/common.sh"
experiment v1_figure7_8 cable-v1 alibi
use wikitext103 test
train wikitext103_tiny 512 $(full --steps 5000)
if [ "$SCALE" = full ]; then layers="0 1 2 3 4 5"; else layers="0 1"; fi
for trained in "${runs[@]}"; do
    out=$RUNS/$SCALE/$name/${trained##*/}
    run python plot.py biases "$trained" --data "$data" --tokens $((512 / shrink)) --mean --out "$out-figure7.png" || true
    for layer in $layers; do
        run python plot.py biases "$trained" --data "$data" --tokens 4 --layer "$layer" --out "$out-figure8-layer$layer.png" || true
    done
done
finish
