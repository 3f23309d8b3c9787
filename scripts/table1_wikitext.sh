#!/usr/bin/env bash
# CABLE, table 1, lower half: GPT-2 tiny on WikiText-103, 9,000 steps at 1,024 tokens.
#
# Perplexity at 512 to 15,360 tokens.
#
# Cost per encoding (ten): 1.18B tokens, 3.6e17 FLOPs, 15 minutes of one H100 at 40% MFU; all
# together 2.5 hours, 20 minutes of eight. Disk: 0.3 GB of data, 1.1 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table1_wikitext --data wikitext103 --train wikitext103_tiny \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360 --paper cable_table1_wikitext-103_tiny "$@"
