#!/usr/bin/env bash
# CABLE, version 1, table 1: HellaSwag, and perplexity on FineWeb, WikiText-103 and WikiText-2.
#
# GPT-2 medium and small, trained on FineWeb-Edu-10B and evaluated at 1,024 tokens. Raw WikiText-103
# and WikiText-2 have the same test text, but the paper has two numbers: WikiText-2 is tokenized
# here. The paper does not say whether it reports acc or acc_norm: the table has both. `cable`
# (version 3) is in the table, but has no claim of version 1.
#
# Cost: data sets: 4, trainings: 14, evaluations: 56; 2.3e20 FLOPs; 160 h of one H100; disk 141.0
# GB; download 28.9 GB. The trainings are shared with table1_fineweb.sh, table4.sh and
# v1_figure1_4.sh, except cable-v1 of size medium.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name generalization --data fineweb-edu \
    --train fineweb-edu_medium fineweb-edu_small --encodings cable cable-v1 alibi t5 t5-clip rope sinusoidal \
    --evaluate_on fineweb wikitext103 wikitext2-tokenized --perplexity 1024 --paper cable_v1_table1_generalization \
    --hellaswag "$(pick hub hub scripts/hellaswag_smoke.jsonl)" "$@"
