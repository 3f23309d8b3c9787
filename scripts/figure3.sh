#!/usr/bin/env bash
# CABLE, figure 3 and sections 5.2 and 5.3: speed and memory of training, and speed of generation.
#
#     bash scripts/figure3.sh
#
# On one GPU: GPT-2 medium as in figure 3, then small as in section 5.3, at several context lengths;
# a claim of one size is judged on that size only. Figure 4 of version 1 is in v1_figure1_4.sh.
# Speeds of a machine that runs anything else are of no use; memory does not depend on it.
# SCALE=small has fewer lengths and encodings: about 5 minutes on two quiet CPU cores.
#
# Cost: no training. Eleven encodings and nope, medians of 10 rounds: about one hour of one H100.
# Disk: nothing.

source "$(dirname "$0")/common.sh"
experiment figure3 cable alibi kerple rope sinusoidal dapev2+cable dapev2+kerple \
    $(at_full_scale fire t5 t5-clip learnable)
measure_speed cable_section5.3_speed medium small
finish
