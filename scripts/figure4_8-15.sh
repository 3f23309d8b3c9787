#!/usr/bin/env bash
# CABLE, figures 4 and 8 to 15: biases of every head in the last layer.
#
# GPT-2 small trained on FineWeb-Edu-10B at 512 tokens; biases on 512 tokens of validation text.
# DAPEv2: the sum of bias and correction; RoPE, which has no bias: the logits.
#
# Cost: data sets: 1, trainings: 9, plot.py (not estimated): 9; 7.4e19 FLOPs; 52 h of one H100;
# disk 60.0 GB; download 28.0 GB. table2_dapev2.sh shares cable and kerple, with and without
# DAPEv2.

source "$(dirname "$0")/activate.sh"
common=(--name figure4_8-15 --data fineweb-edu)
experiment "${common[@]}" --train fineweb-edu_small --block_size 512 \
    --encodings cable dapev2+cable kerple dapev2+kerple alibi fire t5 t5-clip rope "$@"
experiment "${common[@]}" --commands - "$@" < <(
    for run in "${runs[@]}"; do
        line plot.py biases "$run" --tokens "$(at_scale 512)" --out "${run##*/}.png"
    done
)
exit $failed
