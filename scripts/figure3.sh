#!/usr/bin/env bash
# CABLE, figure 3 and sections 5.2 and 5.3: speed and memory of training, and speed of generation.
#
#     bash scripts/figure3.sh
#
# On one GPU: GPT-2 medium as in figure 3, then small as in section 5.3, at several context lengths.
# For figure 4 and section 5.2 of version 1, set ENCODINGS="cable-v1 alibi t5 t5-clip rope
# sinusoidal". Speeds of a machine that runs anything else are of no use; memory does not depend on
# it. SCALE=small has fewer lengths and encodings: about 5 minutes on two quiet CPU cores.
#
# Cost: no training. Eleven encodings and nope, medians of 10 rounds: about one hour of one H100.
# Disk: nothing.

source "$(dirname "$0")/common.sh"
experiment figure3 cable alibi kerple rope sinusoidal dapev2+cable dapev2+kerple \
    $(at_full_scale fire t5 t5-clip learnable)
sizes=tiny repeats=3 micro_batch=1 trained=512,2048 generated=2048
case $SCALE in
    full) sizes="medium small" repeats=10 micro_batch=4 trained=512,1024,2048 generated=$trained ;;
    smoke) sizes=quickstart repeats=1 ;;
esac
printed=cable_section5.3_speed
if [[ " $encodings " == *" cable-v1 "* ]]; then printed=cable_v1_section5.2_speed; fi
for size in $sizes; do
    out=$RUNS/$SCALE/$name/$size
    flags=(--encodings "${encodings// /,}" --model "$size" --repeats $repeats "${plugin_flags[@]}")
    run python bench.py train --context "$(scaled_lengths $trained)" --micro_batch $micro_batch \
        "${flags[@]}" --out "$out/train.json" && records+=("$out/train.json") || true
    run python bench.py generate --context "$(scaled_lengths $generated)" \
        "${flags[@]}" --out "$out/generate.json" && records+=("$out/generate.json") || true
    report $printed "$size"
    records=()
done
finish
