#!/usr/bin/env bash
# CABLE, table 1, upper half: GPT-2 medium on FineWeb-Edu-10B, trained at 1,024 tokens.
#
#     bash scripts/table1_fineweb.sh --dry_run              # commands and cost
#     bash scripts/table1_fineweb.sh --encodings cable      # one encoding first
#     bash scripts/table1_fineweb.sh                        # all; --help lists the flags
#
# Perplexity at 512 to 15,360 tokens.
#
# Cost: data sets: 1, trainings: 10, evaluations: 11; 2.5e20 FLOPs; 180 h of one H100; disk 147.4
# GB; download 28.0 GB. fire, kerple, t5 and t5-clip may take longer.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table1_fineweb --data fineweb-edu --train fineweb-edu_medium \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360 --paper cable_table1_fineweb-edu-10b_medium "$@"
