#!/usr/bin/env bash
# CABLE, figure 3: speed and memory of training, and speed of generation, on one GPU.
#
#     bash scripts/figure3.sh
#
# GPT-2 medium at several context lengths. For figure 4 of version 1, set ENCODINGS="cable-v1
# alibi t5 t5-clip rope sinusoidal".
#
# Cost: no training. Nine encodings and nope, medians of 10 rounds: about 30 minutes of one H100.
# Disk: nothing.

source "$(dirname "$0")/common.sh"
experiment figure3 cable alibi fire t5 t5-clip kerple rope learnable sinusoidal
case $SCALE in
    full) size=medium repeats=10 micro_batch=4 ;;
    small) size=tiny repeats=3 micro_batch=1 ;;
    smoke) size=quickstart repeats=1 micro_batch=1 ;;
esac
out=$RUNS/$SCALE/$name
run python bench.py train generate --encodings "${encodings// /,}" \
    --context "$(scaled_lengths 512,1024,2048)" \
    --model $size --micro_batch $micro_batch --repeats $repeats --out "$out/bench.json" \
    "${plugin_flags[@]}"
run python report.py "$out/bench.json" --out_dir "$out"
finish
