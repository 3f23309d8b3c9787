#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 3 and 5, figures 6, 7 and 11.
#
#     bash scripts/sandwich_table3_5.sh --seeds 1 2 3 4 5 --data data/arxiv --runs runs/arxiv
#
# GPT-2 small trained at 512 tokens, evaluated at up to 8,192, and at up to 16,384 with and without a
# KV cache of 2,048 tokens. Without --data: FineWeb-Edu. Other texts: openwebtext2 and github, each with its own --runs.
# At smaller scales also ALiBi with slopes scaled to the training length (section 6.2).
#
# Cost: 8 trainings of 0.82B tokens, 6.5e17 FLOPs, 30 minutes of one H100 at 40% MFU each, 4 hours
# per seed. Disk: 3 GB per run.

source "$(dirname "$0")/activate.sh"
common="--data fineweb-edu --train sandwich_small --block_size 512"
python run_experiment.py --name sandwich_table3_5 $common --encodings sandwich sandwich-smoothed alibi \
    "{reduced:alibi-shift:shift={shift:0}}" sinusoidal rope kerple t5 --same_targets 512,1024,2048,4096,8192 \
    --receptive_field 512,1024,2048 --paper "sandwich_table3_{text}" "$@"
python run_experiment.py --name sandwich_table3_5/trained-at-128 $common --block_size 128 \
    --encodings sinusoidal --receptive_field 512,1024,2048 "$@"
python run_experiment.py --name sandwich_table3_5/cache $common --encodings sandwich alibi \
    --same_targets 4096,8192,16384 --cache_window 2048 --paper "sandwich_table5_{text}" "$@"
python run_experiment.py --name sandwich_table3_5/without-cache $common --encodings sandwich alibi \
    --same_targets 4096,8192,16384 "$@"
