#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 1, 2 and 4, figures 4, 5, 12 and 13: why ALiBi extrapolates.
#
#     DATA=data/arxiv RUNS=runs/arxiv bash scripts/sandwich_table1_2_4.sh    # table 1
#     DATA=data/openwebtext2 RUNS=runs/openwebtext2 bash scripts/sandwich_table1_2_4.sh    # table 4
#
# GPT-2 small trained at 512 tokens with scaled slopes, equal slopes, or windows; then two failing
# settings trained on longer texts. Without DATA: FineWeb-Edu. At smaller scales, slopes and
# windows are scaled with the training length.
#
# Cost: 19 trainings of 0.82B tokens, 6.5e17 FLOPs, 30 minutes of one H100 at 40% MFU each, 9
# hours in all. Disk: 3 GB per run.

source "$(dirname "$0")/common.sh"
settings=() layers=$(at_full_scale 12) text=arxiv
for shift in -3 0 2 4 6 8; do settings+=(alibi-shift:shift=$((shift - octaves))); done
for h in 0 2 4 6 8; do settings+=(alibi-equal:h=$((h - octaves))); done
for w in 40 80 100 120 160 320; do settings+=(window:w=$((w * 12 / ${layers:-4} / scale_divisor))); done
experiment sandwich_table1_2_4 "${settings[@]}"
prepare_data fineweb-edu
number=1
case ${data##*/} in openwebtext2) text=openwebtext2 number=4 ;; esac
table=$(at_full_scale sandwich_table${number}_$text)
train sandwich_small 512
evaluate_same_targets 512,1024,2048,4096,8192
evaluate_receptive_field 512,1024,2048
report "${table:--}"
longer=()
for pe in $encodings; do
    case $pe in "${settings[4]}") length=2048 ;; "${settings[15]}") length=1024 ;; *) continue ;; esac
    encodings=$pe
    train sandwich_small $length && longer+=("${runs[@]}")
done
runs=("${longer[@]}") records=()
evaluate_same_targets 2048,4096,8192
table=$(at_full_scale sandwich_table2_$text)
report "${table:--}" trained-longer
finish
