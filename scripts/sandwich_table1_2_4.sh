#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), tables 1, 2 and 4, figures 4, 5, 12 and 13: why ALiBi extrapolates.
#
#     bash scripts/sandwich_table1_2_4.sh --data data/arxiv --runs runs/arxiv                    # table 1
#     bash scripts/sandwich_table1_2_4.sh --data data/openwebtext2 --runs runs/openwebtext2      # table 4
#
# GPT-2 small trained at 512 tokens with scaled slopes, equal slopes, or windows; then two failing
# settings trained on longer texts. Without --data: FineWeb-Edu. At smaller scales, slopes and
# windows are scaled with the training length.
#
# Cost: 19 trainings of 0.82B tokens, 6.5e17 FLOPs, 30 minutes of one H100 at 40% MFU each, 9
# hours in all. Disk: 3 GB per run.

source "$(dirname "$0")/activate.sh"
common="--data fineweb-edu --train sandwich_small"
python run_experiment.py --name sandwich_table1_2_4 $common --block_size 512 \
    --encodings alibi-shift:shift=\{shift:{-3,0,2,4,6,8}\} alibi-equal:h=\{shift:{0,2,4,6,8}\} \
    window:w=\{window:{40,80,100,120,160,320}\} --same_targets 512,1024,2048,4096,8192 \
    --receptive_field 512,1024,2048 --paper "{full:sandwich_table[14]_{text}}" "$@"
python run_experiment.py --name sandwich_table1_2_4/trained-longer $common --paired --block_size 2048 1024 \
    --encodings "alibi-shift:shift={shift:6}" "window:w={window:160}" --same_targets 2048,4096,8192 \
    --paper "{full:sandwich_table2_{text}}" "$@"
