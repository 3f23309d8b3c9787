#!/usr/bin/env bash
# CABLE, figures 4 and 8 to 15: the biases of every head in the last layer of GPT-2 small, trained on FineWeb-Edu-10B at 512 tokens,
# on 512 tokens of validation text, with DAPEv2 what it adds in all; for RoPE, which adds nothing, the scores.
#
#     bash scripts/figure4_8-15.sh
#
# Cost of each encoding: 9.96B tokens, 8.0e18 FLOPs, 6 hours of an H100 at 40% MFU; those of cable and kerple, with and without DAPEv2,
# are table2_dapev2.sh's. Disk: 20 GB of data, 3 GB a run.

source "$(dirname "$0")/common.sh"
experiment figure4_8-15 cable dapev2+cable kerple dapev2+kerple alibi fire t5 t5-clip rope
use fineweb-edu
train fineweb-edu_small 512
for trained in "${runs[@]}"; do
    run python plot.py biases "$trained" --data "$data" --tokens $((512 / shrink)) --out "$RUNS/$SCALE/$name/${trained##*/}.png" || true
done
finish
