#!/usr/bin/env bash
# CABLE, version 1, figure 5: cable-v1 and sinusoidal by training length.
#
# GPT-2 tiny on WikiText-103, 5,000 steps of 131,072 tokens as in v1_figure3_6.sh; trained at 512
# to 8,192 tokens and evaluated at all of these lengths: compare sinusoidal at its training length
# with every cable-v1 that was trained at this length or less.
#
# Cost per training (ten): 0.66B tokens, 1.9e17 FLOPs at 512 tokens to 3.7e17 at 8,192, 8 to 15
# minutes of one H100 at 40% MFU; all together 2 hours. Disk: 0.3 GB of data, 1.1 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name v1_figure5 --data wikitext103 --train wikitext103_tiny \
    --block_size 512 1024 2048 4096 8192 --train_flags "$(pick "--steps 5000" "")" --encodings cable-v1 sinusoidal \
    --perplexity 512,1024,2048,4096,8192 --paper cable_v1_training-lengths "$@"
