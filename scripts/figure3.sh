#!/usr/bin/env bash
# CABLE, figure 3: training speed and memory, and speed of generation, against context, for GPT-2 medium, on one GPU. Version 1's figure
# 4: ENCODINGS="cable-v1 alibi t5 t5-clip rope sinusoidal".
#
#     bash scripts/figure3.sh
#
# Cost: no training; nine encodings and nope, medians of 10 rounds, about half an hour of an H100. Disk: nothing.

source "$(dirname "$0")/common.sh"
experiment figure3 cable alibi fire t5 t5-clip kerple rope learnable sinusoidal
case $SCALE in
    full) size=medium repeats=10 micro_batch=4 ;;
    small) size=tiny repeats=3 micro_batch=1 ;;
    smoke) size=quickstart repeats=1 micro_batch=1 ;;
esac
out=$RUNS/$SCALE/$name
run python bench.py train generate --encodings "${encodings// /,}" --context $((512 / shrink)),$((1024 / shrink)),$((2048 / shrink)) \
    --model $size --micro_batch $micro_batch --repeats $repeats --out "$out/bench.json"
run python report.py "$out/bench.json" --out_dir "$out"
finish
