#!/usr/bin/env bash
# CABLE, version 1, figure 5: cable-v1 and sinusoidal by training length.
#
# GPT-2 tiny on WikiText-103, 5,000 steps of 131,072 tokens as in v1_figure3_6.sh; trained at 512
# to 8,192 tokens and evaluated at all of these lengths: compare sinusoidal at its training length
# with every cable-v1 that was trained at this length or less.
#
# Cost: data sets: 1, trainings: 10, evaluations: 10; 2.5e18 FLOPs; 1.8 h of one H100; disk 16.3
# GB; download 0.3 GB.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name v1_figure5 --data wikitext103 --train wikitext103_tiny \
    --block_size 512 1024 2048 4096 8192 --train_flags "$(pick "--steps 5000" "")" --encodings cable-v1 sinusoidal \
    --perplexity 512,1024,2048,4096,8192 --paper cable_v1_training-lengths "$@"
