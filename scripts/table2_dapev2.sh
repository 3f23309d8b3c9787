#!/usr/bin/env bash
# CABLE, table 2: cable and kerple with and without DAPEv2.
#
#     bash scripts/table2_dapev2.sh
#
# GPT-2 small on FineWeb-Edu-10B, trained at 512 tokens; perplexity at 512 to 8,192 tokens.
#
# Cost of cable: 9.96B tokens, 8.0e18 FLOPs, 6 hours of one H100 at 40% MFU, 45 minutes of eight.
# kerple may take longer. DAPEv2 takes three times as long according to the paper: its convolutions
# add 1.7e18 FLOPs and read and write every pair of tokens. Evaluation of the 0.1B validation
# tokens at five lengths: 1.8e17 FLOPs, 8 minutes of one H100 for cable. Disk: 20 GB of data, 3 GB per run.

source "$(dirname "$0")/common.sh"
experiment table2_dapev2 cable kerple dapev2+cable dapev2+kerple
prepare_data fineweb-edu
train fineweb-edu_small 512
evaluate_perplexity 512,1024,2048,4096,8192
report cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512
finish
