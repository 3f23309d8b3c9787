#!/usr/bin/env bash
# CABLE, version 1, figures 3 and 6: tiny on WikiText-103, 5,000 steps of 131,072 tokens, trained at 1,024 and at 512; K-Cable too. It
# prints 128 sequences a step and also 524,288 tokens: 131,072 is 128 sequences of 1,024, and the same text at every length.
#
#     bash scripts/v1_figure3_6.sh
#
# Cost of each of the seven encodings at each length: 0.66B tokens, 2.0e17 FLOPs, 8 minutes of an H100 at 40% MFU; together 2 hours
# of one H100. Disk: 0.3 GB of data, 1.1 GB a run.

source "$(dirname "$0")/common.sh"
experiment v1_figure3_6 cable-v1 alibi t5 t5-clip rope sinusoidal k-cable-v1
use wikitext103 test
for length in 1024 512; do
    train wikitext103_tiny $length $(full --steps 5000)
    evaluate 512,1024,2048,4096,8192,16384
    report - trained_at_$length
done
finish
