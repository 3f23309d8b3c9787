#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), section 6, figures 8 to 10: its bias, other dimensions, speed of T5.
#
#     DATA=data/arxiv RUNS=runs/arxiv bash scripts/sandwich_section6.sh
#
# Plots the bias of 8,192 tokens with a fitted logarithm. Trains GPT-2 small at 512 tokens with five
# dimensions of the sinusoidal embeddings (section 6.1). The text names only the best,
# 128; we did not read the legend of figure 10.
# Compares the training speed and memory of t5 and kerple with sandwich (section 6.2), which needs
# an idle machine.
# Without DATA: FineWeb-Edu.
#
# Cost: 5 trainings of 0.82B tokens, 6.5e17 FLOPs, 30 minutes of one H100 at 40% MFU each, 2.5
# hours in all. Disk: 3 GB per run.

source "$(dirname "$0")/common.sh"
experiment sandwich_section6 sandwich sandwich:dimension={32,64,256,512}
out=$RUNS/$SCALE/$name context=8192 size=small rounds=10
case $SCALE in
    small) size=quickstart ;;
    smoke) context=256 size=quickstart rounds=1 ;;
esac
run python plot.py distances sandwich sandwich-smoothed --context $context --fit $context \
    --out "$out/figure9.png" || true
run python plot.py distances sandwich:dimension={32,64,128,256,512} --context $context \
    --out "$out/figure10.png" || true
prepare_data fineweb-edu
train sandwich_small 512
evaluate_same_targets 512,1024,2048,4096,8192
report -
records=("$out/train.json")
run python bench.py train --encodings sandwich,t5,kerple --model $size --micro_batch 32 \
    --context "$(scaled_lengths 512)" --repeats $rounds --out "${records[0]}" \
    "${plugin_flags[@]}" &&
    report sandwich_section6.2_speed speed || true
finish
