#!/usr/bin/env bash
# CABLE, figure 5: K-CABLE and CABLE, GPT-2 tiny on WikiText-103, trained at 1,024 tokens.
#
# The training of cable is shared with table1_wikitext.sh.
#
# Cost: data sets: 1, trainings: 2, evaluations: 2; 7.2e17 FLOPs; 0.51 h of one H100; disk 3.5 GB;
# download 0.3 GB. k-cable has no fused kernel of PyTorch and may take longer.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name figure5 --data wikitext103 --train wikitext103_tiny \
    --encodings cable k-cable --perplexity 512,1024,2048,4096,8192,15360 "$@"
