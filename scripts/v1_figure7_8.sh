#!/usr/bin/env bash
# CABLE, version 1, figures 7 and 8: bias matrices of cable-v1 and alibi.
#
#     bash scripts/v1_figure7_8.sh
#
# Means over heads on 512 tokens, and every head of every layer on four tokens. Uses the trainings
# of v1_figure3_6.sh at 512 tokens.
#
# Cost per training (two): 0.66B tokens, 1.9e17 FLOPs, 8 minutes of one H100 at 40% MFU. Disk: 0.3
# GB of data, 1.1 GB per run.

source "$(dirname "$0")/common.sh"
experiment v1_figure7_8 cable-v1 alibi
prepare_data wikitext103 test
train wikitext103_tiny 512 $(at_full_scale --steps 5000)
case $SCALE in
    full) layers="0 1 2 3 4 5" ;;
    small) layers="0 1 2 3" ;;
    smoke) layers="0 1" ;;
esac
for trained in "${runs[@]}"; do
    out=$RUNS/$SCALE/$name/${trained##*/}
    plot_biases "$trained" "$out-figure7.png" --tokens $((512 / scale_divisor)) --mean
    for layer in $layers; do
        plot_biases "$trained" "$out-figure8-layer$layer.png" --tokens 4 --layer "$layer"
    done
done
finish
