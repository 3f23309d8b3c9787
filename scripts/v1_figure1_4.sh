#!/usr/bin/env bash
# CABLE, version 1, figures 1 and 4: perplexity of GPT-2 small on FineWeb-Edu-10B; speed and memory.
#
# Figure 1: trained at 1,024 tokens, evaluated at up to 16,384. Figure 4 and section 5.2: training at
# 512 to 2,048 tokens with 16 sequences (section 4.2), and generation, of GPT-2 medium on one GPU.
#
# Cost: data sets: 1, trainings: 6, evaluations: 7, bench.py (not estimated): 1; 5.3e19 FLOPs; 37
# h of one H100; disk 46.6 GB; download 28.0 GB. Half an hour for figure 4. Five trainings are
# shared with table4.sh, all with generalization.sh.

source "$(dirname "$0")/activate.sh"
encodings="cable-v1 alibi t5 t5-clip rope sinusoidal"
experiment --name v1_figure1_4/figure1 --data fineweb-edu --train fineweb-edu_small \
    --encodings $encodings --perplexity 512,1024,2048,4096,8192,16384 "$@"
experiment --name v1_figure1_4/medium --paper cable_v1_section5.2_speed --commands - "$@" < <(
    line bench.py train generate --encodings "$(option encodings $encodings | paste -sd,)" \
        --model "$(pick medium tiny quickstart)" --context "$(at_scale 512,1024,2048)" \
        --micro_batch "$(pick 16 1)" --repeats "$(pick 10 3 1)" --out speed.json
)
exit $failed
