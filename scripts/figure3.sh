#!/usr/bin/env bash
# CABLE, figure 3 and sections 5.2 and 5.3: speed and memory of training, and speed of generation.
#
# On one GPU: GPT-2 medium as in figure 3, then small as in section 5.3, at several context lengths;
# a claim of one size is judged on that size only. Figure 4 of version 1 is in v1_figure1_4.sh.
# Speeds of a machine that runs anything else are of no use; memory does not depend on it.
# --scale small: about 10 minutes on two quiet CPU cores.
#
# Cost: bench.py (not estimated): 2. Eleven encodings and nope, medians of 10 rounds: about one
# hour of one H100.

source "$(dirname "$0")/activate.sh"
encodings="cable alibi kerple rope sinusoidal dapev2+cable dapev2+kerple fire t5 t5-clip learnable"
for model in medium small; do
    experiment --name figure3/$model --paper cable_section5.3_speed --commands - "$@" < <(
        line bench.py train generate --encodings "$(option encodings $encodings | paste -sd,)" \
            --model "$(pick $model tiny quickstart)" --context "$(at_scale 512,1024,2048)" \
            --micro_batch "$(pick 4 1)" --repeats "$(pick 10 3 1)" --out speed.json
    )
done
exit $failed
