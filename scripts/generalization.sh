#!/usr/bin/env bash
# CABLE, version 1, table 1: medium and small trained on FineWeb-Edu-10B at 1,024 tokens; HellaSwag, and perplexity on FineWeb and
# WikiText-103, whose test text is WikiText-2's too. The paper names neither acc nor acc_norm: both stand beside its one.
#
#     bash scripts/generalization.sh
#
# Cost of each of the seven encodings: 9.96B tokens, 2.4e19 (medium) and 8.5e18 FLOPs (small), 17 and 6 hours of an H100 at 40% MFU;
# together 7 days of one H100, 20 hours of eight; those of table 1 and table 4 are done once. Disk: 21 GB of data, 8.5 and 3 GB a run.

source "$(dirname "$0")/common.sh"
experiment generalization cable cable-v1 alibi t5 t5-clip rope sinusoidal
for size in medium small; do
    use fineweb-edu
    train fineweb-edu_$size 1024
    if [ "$SCALE" = smoke ]; then export HELLASWAG=scripts/hellaswag_smoke.jsonl; fi
    measure eval_hellaswag.py ${HELLASWAG:+--source "$HELLASWAG"}
    for dataset in fineweb wikitext103; do
        if [ $dataset = fineweb ]; then use fineweb; else use wikitext103 test; fi
        evaluate 1024
    done
    all+=("${records[@]}")
done
records=("${all[@]}")
report cable_v1_table1_generalization
finish
