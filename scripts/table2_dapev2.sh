#!/usr/bin/env bash
# CABLE, table 2: cable and kerple with and without DAPEv2.
#
# GPT-2 small on FineWeb-Edu-10B, trained at 512 tokens; perplexity at 512 to 8,192 tokens.
#
# Cost of cable: 9.96B tokens, 8.0e18 FLOPs, 6 hours of one H100 at 40% MFU, 45 minutes of eight.
# kerple may take longer. DAPEv2 takes three times as long according to the paper: its convolutions
# add 1.7e18 FLOPs and read and write every pair of tokens. Evaluation of the 0.1B validation
# tokens at five lengths: 1.8e17 FLOPs, 8 minutes of one H100 for cable. Disk: 20 GB of data, 3 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table2_dapev2 --data fineweb-edu --train fineweb-edu_small \
    --block_size 512 --encodings cable kerple dapev2+cable dapev2+kerple \
    --perplexity 512,1024,2048,4096,8192 \
    --paper cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512 "$@"
