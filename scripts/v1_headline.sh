#!/usr/bin/env bash
# CABLE, version 1, abstract and section 5.4: trained at 512 tokens, as good as trained at 1,024?
#
#     bash scripts/v1_headline.sh
#
# Abstract: GPT-2 medium on FineWeb-Edu, cable-v1 trained at 512 tokens and sinusoidal at 1,024, with
# memory and time of a training step. Section 5.4: tiny on WikiText-103, k-cable-v1 trained at 512 and
# cable-v1 at 1,024; shares the trainings of v1_figure3_6.sh. All are evaluated at 1,024 tokens.
# ENCODINGS replaces the encodings that are trained at 512 tokens.
#
# Cost: two trainings of medium, 10B tokens each, 33 hours of one H100 at 40% MFU; two of tiny, 16
# minutes; minutes for the benchmark. Disk: 20 GB of data, 5 GB per run of medium.

source "$(dirname "$0")/common.sh"
experiment v1_headline cable-v1 sinusoidal k-cable-v1
model=(--model quickstart --micro_batch 8 --repeats 5)
if [ "$SCALE" = full ]; then model=(--model medium --micro_batch 16 --repeats 10); fi

# compare CONFIG ENCODING BASELINE [FLAG...]: train an encoding at 512 tokens and a baseline at 1,024.
compare() {
    local trained
    encodings=${ENCODINGS:-$2} train "$1" 512 "${@:4}"
    trained=("${runs[@]}")
    encodings=$3 train "$1" 1024 "${@:4}"
    runs=("${trained[@]}" "${runs[@]}")
    evaluate_perplexity 1024
}

prepare_data fineweb-edu
compare fineweb-edu_medium cable-v1 sinusoidal
bench=$RUNS/$SCALE/$name/train.json
run python bench.py train --encodings cable-v1,sinusoidal --context "$(scaled_lengths 512,1024)" \
    "${model[@]}" "${plugin_flags[@]}" --out "$bench" && records+=("$bench") || true
report cable_v1_training-lengths abstract
prepare_data wikitext103 test
compare wikitext103_tiny k-cable-v1 cable-v1 $(at_full_scale --steps 5000)
report cable_v1_training-lengths section5.4
finish
