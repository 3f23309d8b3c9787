#!/usr/bin/env bash
# Sixteen encodings at small scale, with CABLE's claims.
#
#     bash scripts/reproduction.sh --seeds 1 2 3                        # WikiText-103 from the hub
#     bash scripts/reproduction.sh --seeds 1 2 3 --data data/english    # shards of your own
#
# 0.8M parameters, byte tokens, 256 tokens of context. One question in addition to the paper's: is
# RoPE composed with a decaying bias better than either alone? results/reproduction has the results.
#
# Cost per encoding: 4.1M tokens, 2.6e13 FLOPs, 6 to 11 minutes of one CPU core. Disk: 0.3 GB.
# Learning rates that were searched for are in run_experiment.py.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name reproduction --scale small --data wikitext103 --train wikitext103_tiny \
    --encodings cable cable-nw alibi fire t5 t5-clip kerple kerple-power rope learnable sinusoidal fox \
    k-cable nope rope+cable rope+fox --perplexity 512,1024,2048,4096,8192,15360,16384 \
    --paper cable_table1_wikitext-103_tiny "$@"
