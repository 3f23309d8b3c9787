#!/usr/bin/env bash
# How far does RoPE reach once its frequencies are changed for texts 16 times as long: by interpolation (Chen et al. 2023), NTK-aware, by
# YaRN (Peng et al. 2024)? As it is, and after a twentieth of the steps more at that length. Beside it CABLE, and both with a cache that
# ends at the training length.
#
#     SEEDS="1 2 3" bash scripts/rope_extended.sh      # results/README.md tells of a run in small
#
# Cost: two trainings of small on FineWeb-Edu and four twentieths of one at 16,384 tokens, 16 hours of one H100 at 40% MFU.

source "$(dirname "$0")/common.sh"
experiment rope_extended cable
use fineweb-edu
lr=() more=(--block_size $((16384 / shrink)) --micro_batch 1 --steps 950 --lr 6e-5 --min_lr 6e-6 --warmup_steps 20)
if [ "$SCALE" != full ]; then lr=(--lr 8e-3) more=("${more[@]::4}" --steps 50 --lr 8e-4 --warmup_steps 5); fi
train fineweb-edu_small 1024 && others=("${runs[@]}") encodings=rope
train fineweb-edu_small 1024 "${lr[@]}" && bases=("${runs[@]}") runs+=("${others[@]}")
evaluate 512,1024,2048,4096,8192,16384 --cache_window $((1024 / shrink))
for base in "${bases[@]}"; do for pe in {rope-pi,rope-ntk,yarn}:factor={4,16}; do adapt "$base" $pe --steps 0; done; done
evaluate 512,1024,2048,4096,8192,16384
report - as_it_is
runs=() records=() variants=(rope {rope-pi,rope-ntk}:factor=16 yarn:factor=16,length=$((1024 / shrink)))
for base in "${bases[@]}"; do for pe in "${variants[@]}"; do adapt "$base" "$pe" "${more[@]}"; done; done
evaluate 512,1024,2048,4096,8192,16384
report - trained_on
finish
