#!/usr/bin/env bash
# CABLE, figure 5: K-CABLE beside CABLE, GPT-2 tiny on WikiText-103, trained at 1,024 tokens. CABLE's training is table1_wikitext.sh's.
#
#     bash scripts/figure5.sh
#
# Cost of each of the two: 1.18B tokens, 3.6e17 FLOPs, 15 minutes of an H100 at 40% MFU (k-cable, which is dense, more). Disk: 0.3 GB
# of data, 1.1 GB a run.

source "$(dirname "$0")/common.sh"
experiment figure5 cable k-cable
use wikitext103 test
train wikitext103_tiny 1024
evaluate 512,1024,2048,4096,8192,15360
report -
finish
