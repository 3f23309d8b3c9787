#!/usr/bin/env bash
# CABLE, version 1, figure 5: cable-v1 and sinusoidal, each trained at 512 to 8,192 tokens on WikiText-103 (tiny, 5,000 steps of
# 131,072 tokens at every length, as in v1_figure3_6.sh) and read at all of them.
#
#     bash scripts/v1_figure5.sh
#
# Cost of each of the ten trainings: 0.66B tokens, 1.9e17 FLOPs at 512 to 3.7e17 at 8,192, 8 to 15 minutes of an H100 at 40% MFU;
# together 2 hours of one H100. Disk: 0.3 GB of data, 1.1 GB a run.

source "$(dirname "$0")/common.sh"
experiment v1_figure5 cable-v1 sinusoidal
use wikitext103 test
all=()
for length in 512 1024 2048 4096 8192; do
    train wikitext103_tiny $length $(full --steps 5000)
    evaluate 512,1024,2048,4096,8192
    all+=("${records[@]}")
done
records=("${all[@]}")
report -
finish
