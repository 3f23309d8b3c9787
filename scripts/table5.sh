#!/usr/bin/env bash
# CABLE, table 5: GPT-2 medium (3,000 steps) and small (5,000) on WikiText-103.
#
# Trained at 1,024 tokens; perplexity at 512 to 15,360 tokens.
#
# Cost per encoding (ten): 0.39B and 0.66B tokens, 9.6e17 and 5.6e17 FLOPs, 40 and 24 minutes of
# one H100 at 40% MFU; all together 11 hours of one H100, 1.3 hours of eight. Disk: 0.3 GB of
# data, 8.5 and 3 GB per run.

source "$(dirname "$0")/activate.sh"
common="--data wikitext103 --perplexity 512,1024,2048,4096,8192,15360"
common+=" --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal --paper cable_table5"
experiment --name table5/medium --train wikitext103_medium ${common}_wikitext-103_medium "$@"
experiment --name table5/small --train wikitext103_small ${common}_wikitext-103_small "$@"
exit $failed
