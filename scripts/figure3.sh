#!/usr/bin/env bash
# CABLE, figure 3 and sections 5.2 and 5.3: speed and memory of training, and speed of generation.
#
# On one GPU: GPT-2 medium as in figure 3, then small as in section 5.3, at several context lengths;
# a claim of one size is judged on that size only. Figure 4 of version 1 is in v1_figure1_4.sh.
# Speeds of a machine that runs anything else are of no use; memory does not depend on it.
# --scale small: about 10 minutes on two quiet CPU cores.
#
# Cost: no training. Eleven encodings and nope, medians of 10 rounds: about one hour of one H100.

source "$(dirname "$0")/activate.sh"
encodings="cable alibi kerple rope sinusoidal dapev2+cable dapev2+kerple fire t5 t5-clip learnable"
python run_experiment.py --name figure3/medium --encodings $encodings --paper cable_section5.3_speed --commands \
    "bench.py train generate --encodings {encodings} --model {full:medium}{small:tiny}{smoke:quickstart}
        --context {scaled:512,1024,2048} --micro_batch {full:4}{reduced:1} --repeats {full:10}{small:3}{smoke:1} {plugins}
        --out {out}/speed.json" "$@"
python run_experiment.py --name figure3/small --encodings $encodings --paper cable_section5.3_speed --commands \
    "bench.py train generate --encodings {encodings} --model {full:small}{small:tiny}{smoke:quickstart}
        --context {scaled:512,1024,2048} --micro_batch {full:4}{reduced:1} --repeats {full:10}{small:3}{smoke:1} {plugins}
        --out {out}/speed.json" "$@"
