#!/usr/bin/env bash
# RoPE with changed frequencies at 16 times its training length.
#
#     SEEDS="1 2 3" bash scripts/rope_extended.sh      # docs/findings has small-scale results
#
# Position interpolation (Chen et al. 2023), NTK-aware and YaRN (Peng et al. 2024), before and after
# fine-tuning at that length for 5% of the steps. DroPE (`--pe nope`): RoPE is dropped, without and
# with as many steps at the training length. Compared with CABLE, and with limited KV caches.
#
# Cost: two trainings of GPT-2 small on FineWeb-Edu and six fine-tunings of 5%: 16 hours of one H100
# at 40% MFU. 19 evaluations of the 0.1B validation tokens at six lengths: 3 hours.

source "$(dirname "$0")/common.sh"
experiment rope_extended cable
prepare_data fineweb-edu
mapfile -t lr < <(small_scale_lr rope)
schedule=(--steps 50 --lr 8e-4 --warmup_steps 5)
if [ "$SCALE" = full ]; then schedule=(--steps 950 --lr 6e-5 --min_lr 6e-6 --warmup_steps 20); fi
train fineweb-edu_small 1024 && others=("${runs[@]}") encodings=rope
train fineweb-edu_small 1024 "${lr[@]}" && bases=("${runs[@]}") runs+=("${others[@]}")
evaluate_perplexity 512,1024,2048,4096,8192,16384 --cache_window $((1024 / scale_divisor))
for base in "${bases[@]}"; do
    for pe in {rope-pi,rope-ntk,yarn}:factor={4,16} yarn:factor={4,16},ramp=released nope; do
        train_from "$base" $pe --steps 0
    done
done
evaluate_perplexity 512,1024,2048,4096,8192,16384
report - as_it_is
finetune() { # REPORT PE...: fine-tune every base as each encoding, with the flags in $schedule
    runs=() records=()
    for base in "${bases[@]}"; do
        for pe in "${@:2}"; do train_from "$base" "$pe" "${schedule[@]}"; done
    done
    evaluate_perplexity 512,1024,2048,4096,8192,16384
    report - "$1"
}
finetune recalibrated rope nope
schedule=(--block_size $((16384 / scale_divisor)) --micro_batch 1 "${schedule[@]}")
finetune trained_on rope {rope-pi,rope-ntk}:factor=16 yarn:factor=16,length=$((1024 / scale_divisor))
finish
