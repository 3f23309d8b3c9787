#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 3 and 5, figures 6, 7 and 11.
#
#     SEEDS="1 2 3 4 5" DATA=data/arxiv RUNS=runs/arxiv bash scripts/sandwich_table3_5.sh
#
# GPT-2 small trained at 512 tokens, evaluated at up to 8,192, and at up to 16,384 with and without a
# KV cache of 2,048 tokens. Without DATA: FineWeb-Edu; pass DATA and RUNS for openwebtext2 and github.
# At smaller scales also ALiBi with slopes scaled to the training length (section 6.2).
#
# Cost: 8 trainings of 0.82B tokens, 6.5e17 FLOPs, 30 minutes of one H100 at 40% MFU each, 4 hours
# per seed. Disk: 3 GB per run.

source "$(dirname "$0")/common.sh"
if [ "$SCALE" = full ]; then scaled_alibi=; else scaled_alibi=alibi-shift:shift=-$octaves; fi
experiment sandwich_table3_5 sandwich sandwich-smoothed alibi $scaled_alibi sinusoidal rope kerple t5
prepare_data fineweb-edu
cached=() all=() shorter=()
case ${data##*/} in openwebtext2 | github) text=${data##*/} ;; *) text=arxiv ;; esac
for encodings in $encodings; do
    mapfile -t lr < <(small_scale_lr "$encodings")
    train sandwich_small 512 "${lr[@]}" && all+=("${runs[@]}")
    case $encodings in
        sandwich | alibi) cached+=("${runs[@]}") ;;
        sinusoidal) train sandwich_small 128 && shorter=("${runs[@]}") ;;
    esac
done
runs=("${all[@]}") records=()
evaluate_same_targets 512,1024,2048,4096,8192
evaluate_receptive_field 512,1024,2048
report sandwich_table3_$text
runs=("${shorter[@]}") records=()
evaluate_receptive_field 512,1024,2048
report - trained-at-128
runs=("${cached[@]}") records=()
evaluate_same_targets 4096,8192,16384 --cache_window $((2048 / scale_divisor))
report sandwich_table5_$text cache
records=()
evaluate_same_targets 4096,8192,16384
report - without-cache
finish
