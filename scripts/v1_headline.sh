#!/usr/bin/env bash
# CABLE, version 1, abstract and section 5.4: trained at 512 tokens, as good as trained at 1,024?
#
# Abstract: GPT-2 medium on FineWeb-Edu, cable-v1 trained at 512 tokens and sinusoidal at 1,024, with
# memory and time of a training step. Section 5.4: tiny on WikiText-103, k-cable-v1 trained at 512 and
# cable-v1 at 1,024; shares the trainings of v1_figure3_6.sh. All are evaluated at 1,024 tokens.
#
# Cost: two trainings of medium, 10B tokens each, 33 hours of one H100 at 40% MFU; two of tiny, 16
# minutes; minutes for the benchmark. Disk: 20 GB of data, 5 GB per run of medium.

source "$(dirname "$0")/activate.sh"
python run_experiment.py --name v1_headline/abstract --data fineweb-edu --train fineweb-edu_medium --paired \
    --encodings cable-v1 sinusoidal --block_size 512 1024 --perplexity 1024 --commands \
    "bench.py train --encodings cable-v1,sinusoidal --context {scaled:512,1024} --repeats {full:10}{reduced:5}
        --model {full:medium --micro_batch 16}{reduced:quickstart --micro_batch 8} --out {out}/train.json" \
    --paper cable_v1_training-lengths "$@"
python run_experiment.py --name v1_headline/section5.4 --data wikitext103 --train wikitext103_tiny --paired \
    --encodings k-cable-v1 cable-v1 --block_size 512 1024 --train_flags "{full:--steps 5000}" --perplexity 1024 \
    --paper cable_v1_training-lengths "$@"
