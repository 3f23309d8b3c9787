#!/usr/bin/env bash
# Sandwich (Chi et al. 2023), section 6, figures 8 to 10: its bias, other dimensions, speed of T5.
#
#     bash scripts/sandwich_section6.sh --data data/arxiv --runs runs/arxiv
#
# Plots the bias of 8,192 tokens with a fitted logarithm. Trains GPT-2 small at 512 tokens with five
# dimensions of the sinusoidal embeddings (section 6.1). The text names only the best, 128; we did not
# read the legend of figure 10. Compares the training speed and memory of t5 and kerple with sandwich
# (section 6.2), which needs an idle machine. Without --data: FineWeb-Edu.
#
# Cost: data sets: 1, trainings: 5, evaluations: 5, plot.py (not estimated): 2, bench.py (not
# estimated): 1; 3.3e18 FLOPs; 2.3 h of one H100; disk 49.1 GB; download 28.0 GB.

source "$(dirname "$0")/activate.sh"
encodings="sandwich sandwich:dimension=32 sandwich:dimension=64 sandwich:dimension=256 sandwich:dimension=512"
experiment --name sandwich_section6 --data fineweb-edu --train sandwich_small --block_size 512 \
    --encodings $encodings --same_targets 512,1024,2048,4096,8192 "$@"
experiment --name sandwich_section6 --commands - "$@" < <(
    context=$(at_scale 8192)
    line plot.py distances sandwich sandwich-smoothed --context "$context" --fit "$context" --out figure9.png
    mapfile -t shown < <(option encodings $encodings | grep '^sandwich')
    if [ ${#shown[@]} != 0 ]; then
        line plot.py distances "${shown[@]}" --context "$context" --out figure10.png
    fi
)
experiment --name sandwich_section6/speed --paper sandwich_section6.2_speed --commands - "$@" < <(
    line bench.py train --encodings sandwich,t5,kerple --model "$(pick small tiny quickstart)" --micro_batch 32 \
        --context "$(at_scale 512)" --repeats "$(pick 10 3 1)" --out train.json
)
exit $failed
