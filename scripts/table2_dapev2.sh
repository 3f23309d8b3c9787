#!/usr/bin/env bash
# CABLE, table 2: cable and kerple with and without DAPEv2.
#
# GPT-2 small on FineWeb-Edu-10B, trained at 512 tokens; perplexity at 512 to 8,192 tokens.
#
# Cost: data sets: 1, trainings: 4, evaluations: 4; 3.5e19 FLOPs; 25 h of one H100; disk 37.7 GB;
# download 28.0 GB. kerple may take longer, and DAPEv2 three times as long according to the paper:
# it reads and writes every pair of tokens.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table2_dapev2 --data fineweb-edu --train fineweb-edu_small \
    --block_size 512 --encodings cable kerple dapev2+cable dapev2+kerple \
    --perplexity 512,1024,2048,4096,8192 \
    --paper cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512 "$@"
