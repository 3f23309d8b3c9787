#!/usr/bin/env bash
# CABLE, table 1, lower half: GPT-2 tiny on WikiText-103, 9,000 steps at 1,024 tokens.
#
# Perplexity at 512 to 15,360 tokens.
#
# Cost: data sets: 1, trainings: 10, evaluations: 11; 3.6e18 FLOPs; 2.5 h of one H100; disk 16.3
# GB; download 0.3 GB.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name table1_wikitext --data wikitext103 --train wikitext103_tiny \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple rope learnable sinusoidal \
    --perplexity 512,1024,2048,4096,8192,15360 --paper cable_table1_wikitext-103_tiny "$@"
