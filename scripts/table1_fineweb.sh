#!/usr/bin/env bash
# CABLE, table 1, upper half: GPT-2 medium on FineWeb-Edu-10B, trained at 1,024 tokens.
#
#     bash scripts/table1_fineweb.sh --dry_run              # commands and cost
#     bash scripts/table1_fineweb.sh --encodings cable      # one encoding first
#     bash scripts/table1_fineweb.sh                        # all; --help lists the flags
#
# Perplexity at 512 to 15,360 tokens.
#
# Cost per encoding (ten, T5's bias in two variants): 9.96B tokens, 2.4e19 FLOPs, 17 hours of one
# H100 at 40% MFU (fire, kerple, t5 and t5-clip may take longer); all: 7 days of one H100, a day of
# eight. Evaluation of 0.1B tokens at six lengths: 7.3e17 FLOPs, half an hour of one H100 per encoding.
# Disk: 20 GB of data, 12.7 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table1_fineweb --data fineweb-edu --train fineweb-edu_medium \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360 --paper cable_table1_fineweb-edu-10b_medium "$@"
