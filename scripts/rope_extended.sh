#!/usr/bin/env bash
# RoPE with changed frequencies at 16 times its training length.
#
#     bash scripts/rope_extended.sh --seeds 1 2 3      # results/long_context has small-scale results
#
# Position interpolation (Chen et al. 2023), NTK-aware and YaRN (Peng et al. 2024), before and after
# fine-tuning at that length for 5% of the steps. `--pe nope`: RoPE is dropped, without and
# with as many steps at the training length. Compared with CABLE, and with limited KV caches.
#
# Cost: two trainings of GPT-2 small on FineWeb-Edu and six fine-tunings of 5%: 16 hours of one H100
# at 40% MFU. 19 evaluations of the 0.1B validation tokens at six lengths: 3 hours.

source "$(dirname "$0")/activate.sh"
lengths=512,1024,2048,4096,8192,16384
common="--data fineweb-edu --train fineweb-edu_small --perplexity $lengths"
finetune="--steps {full:950}{reduced:50} --lr {full:6e-5 --min_lr 6e-6}{reduced:8e-4}"
finetune+=" --warmup_steps {full:20}{reduced:5}"
python run_experiment.py --name rope_extended/cached $common --encodings cable rope \
    --perplexity "$lengths --cache_window {scaled:1024}" "$@"
python run_experiment.py --name rope_extended/as_it_is $common --encodings rope --continue_as \
    {rope-pi,rope-ntk,yarn}:factor={4,16} yarn:factor={4,16},ramp=released nope "$@"
python run_experiment.py --name rope_extended/recalibrated $common --encodings rope --continue_as rope nope \
    --continue_flags "$finetune" "$@"
python run_experiment.py --name rope_extended/trained_on $common --encodings rope \
    --continue_as rope {rope-pi,rope-ntk}:factor=16 "yarn:factor=16,length={scaled:1024}" \
    --continue_flags "--block_size {scaled:16384} --micro_batch 1 $finetune" "$@"
