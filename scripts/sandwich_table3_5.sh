#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 3, 5, figures 6 to 8, 11: GPT-2 small, trained at 512, read to 8,192; to 16,384 with a cache of 2,048.
#
#     SEEDS="1 2 3 4 5" DATA=data/arxiv bash scripts/sandwich_table3_5.sh      # or data/openwebtext2, data/github; none: FineWeb-Edu
#
# Cost: 8 trainings of 0.82B tokens, 6.5e17 FLOPs, half an hour of an H100 at 40% MFU each, 4 hours a seed. Disk: 3 GB a run.
source "$(dirname "$0")/common.sh"
experiment sandwich_table3_5 sandwich sandwich-smoothed alibi sinusoidal rope kerple t5
use fineweb-edu
cached=() all=() shorter=()
case $data in */openwebtext2 | */github) text=${data##*/} ;; *) text=arxiv ;; esac
for pe in $encodings; do
    encodings=$pe lr=()
    if [ "$SCALE" != full ]; then case $pe in alibi | kerple | rope) lr=(--lr 8e-3) ;; t5) lr=(--lr 1.6e-2) ;; esac; fi
    train sandwich_small 512 "${lr[@]}" && all+=("${runs[@]}")
    for trained in "${runs[@]}"; do
        run python plot.py biases "$trained" --data "$data" --tokens $((512 / shrink)) --out "$RUNS/$SCALE/$name/${trained##*/}.png" || true
    done
    case $pe in sandwich | alibi) cached+=("${runs[@]}") ;; sinusoidal) train sandwich_small 128 && shorter=("${runs[@]}") ;; esac
done
runs=("${all[@]}") records=()
last_tokens 512,1024,2048,4096,8192 && reach 512,1024,2048 && report sandwich_table3_$text
runs=("${shorter[@]}") records=() && reach 512,1024,2048 && report - trained-at-128
runs=("${cached[@]}") records=() && last_tokens 4096,8192,16384 --cache_window $((2048 / shrink)) && report sandwich_table5_$text cache
finish
