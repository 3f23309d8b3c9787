#!/usr/bin/env bash
# CABLE, version 1, figures 3 and 6: GPT-2 tiny on WikiText-103, with K-Cable.
#
#     bash scripts/v1_figure3_6.sh
#
# 5,000 steps of 131,072 tokens, trained at 1,024 and at 512 tokens. The paper has a batch
# of 128 and 524,288 tokens per step; 131,072 is 128 sequences of 1,024, used at every length.
#
# Cost per encoding (seven) and length: 0.66B tokens, 2.0e17 FLOPs, 8 minutes of one H100 at 40%
# MFU; all together 2 hours. Disk: 0.3 GB of data, 1.1 GB per run.

source "$(dirname "$0")/common.sh"
experiment v1_figure3_6 cable-v1 alibi t5 t5-clip rope sinusoidal k-cable-v1
prepare_data wikitext103 test
for length in 1024 512; do
    train wikitext103_tiny $length $(at_full_scale --steps 5000)
    evaluate_perplexity 512,1024,2048,4096,8192,16384
    report cable_v1_section5.1_wikitext-103_tiny_trained-at-$length trained_at_$length
done
finish
