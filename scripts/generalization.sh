#!/usr/bin/env bash
# CABLE, version 1, table 1: HellaSwag, and perplexity on FineWeb and WikiText-103.
#
# GPT-2 medium and small, trained on FineWeb-Edu-10B and evaluated at 1,024 tokens. The raw variants of
# WikiText-103 and WikiText-2 have the same test text. The paper does not say whether it reports acc or
# acc_norm: the table has both. `cable` (version 3) is in the table, but has no claim of version 1.
#
# Cost per encoding (seven): 9.96B tokens, 2.4e19 (medium) and 8.5e18 FLOPs (small), 17 and 6
# hours of one H100 at 40% MFU; all together 7 days of one H100, 20 hours of eight. The trainings
# are shared with table1_fineweb.sh and table4.sh, except those of cable-v1: the training of size
# small is shared with v1_figure1_4.sh, and that of size medium is not shared (v1_headline.sh trains
# at 512 tokens). Disk: 21 GB of data, 8.5 and 3 GB per run.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name generalization --data fineweb-edu \
    --train fineweb-edu_medium fineweb-edu_small --encodings cable cable-v1 alibi t5 t5-clip rope sinusoidal \
    --evaluate_on fineweb wikitext103 --perplexity 1024 --hellaswag hub --paper cable_v1_table1_generalization "$@"
