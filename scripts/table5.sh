#!/usr/bin/env bash
# CABLE, table 5: GPT-2 medium (3,000 steps) and small (5,000) on WikiText-103.
#
# Trained at 1,024 tokens; perplexity at 512 to 15,360 tokens.
#
# Cost: data sets: 1, trainings: 20, evaluations: 22; 1.5e19 FLOPs; 11 h of one H100; disk 172.3
# GB; download 0.3 GB.

source "$(dirname "$0")/activate.sh"
common="--data wikitext103 --perplexity 512,1024,2048,4096,8192,15360"
common+=" --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal --paper cable_table5"
experiment --name table5/medium --train wikitext103_medium ${common}_wikitext-103_medium "$@"
experiment --name table5/small --train wikitext103_small ${common}_wikitext-103_small "$@"
exit $failed
