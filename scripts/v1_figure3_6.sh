#!/usr/bin/env bash
# CABLE, version 1, figures 3 and 6: GPT-2 tiny on WikiText-103, with K-Cable.
#
# 5,000 steps of 131,072 tokens, trained at 1,024 and at 512 tokens. The paper has a batch
# of 128 and 524,288 tokens per step; 131,072 is 128 sequences of 1,024, used at every length.
#
# Cost: data sets: 1, trainings: 14, evaluations: 16; 2.7e18 FLOPs; 1.9 h of one H100; disk 22.8
# GB; download 0.3 GB.

source "$(dirname "$0")/activate.sh"
common=(--data wikitext103 --train wikitext103_tiny --encodings cable-v1 alibi t5 t5-clip rope sinusoidal k-cable-v1
    --train_flags "$(pick "--steps 5000" "")" --perplexity 512,1024,2048,4096,8192,16384)
for length in 1024 512; do
    experiment --name v1_figure3_6/trained_at_$length "${common[@]}" --block_size $length \
        --paper cable_v1_section5.1_wikitext-103_tiny_trained-at-$length "$@"
done
exit $failed
