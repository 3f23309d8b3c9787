#!/usr/bin/env bash
# CABLE, figure 5: K-CABLE and CABLE, GPT-2 tiny on WikiText-103, trained at 1,024 tokens.
#
# The training of cable is shared with table1_wikitext.sh.
#
# Cost per encoding: 1.18B tokens, 3.6e17 FLOPs, 15 minutes of one H100 at 40% MFU; k-cable has
# no fused kernel of PyTorch and may take longer. Disk: 0.3 GB of data, 1.1 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name figure5 --data wikitext103 --train wikitext103_tiny \
    --encodings cable k-cable --perplexity 512,1024,2048,4096,8192,15360 "$@"
