#!/usr/bin/env bash
# CABLE, version 1, abstract and section 5.4: trained at 512 tokens, as good as trained at 1,024?
#
# Abstract: GPT-2 medium on FineWeb-Edu, cable-v1 trained at 512 tokens and sinusoidal at 1,024, with
# memory and time of a training step. Section 5.4: tiny on WikiText-103, k-cable-v1 trained at 512 and
# cable-v1 at 1,024; shares the trainings of v1_figure3_6.sh. All are evaluated at 1,024 tokens.
#
# Cost: data sets: 2, trainings: 4, evaluations: 4, bench.py (not estimated): 1; 4.7e19 FLOPs; 33
# h of one H100; disk 48.9 GB; download 28.3 GB. Minutes for the benchmark.

source "$(dirname "$0")/activate.sh"
abstract=(--name v1_headline/abstract --data fineweb-edu --may_differ block_size)
section=(--name v1_headline/section5.4 --data wikitext103 --train wikitext103_tiny --may_differ block_size
    --train_flags "$(pick "--steps 5000" "")" --perplexity 1024 --paper cable_v1_training-lengths)
for flags in "512 --encodings cable-v1" "1024 --encodings sinusoidal"; do
    experiment "${abstract[@]}" --train fineweb-edu_medium --perplexity 1024 --block_size $flags \
        --paper cable_v1_training-lengths "$@"
done
experiment "${abstract[@]}" --paper cable_v1_training-lengths --commands - "$@" < <(
    line bench.py train --encodings cable-v1,sinusoidal --context "$(at_scale 512,1024)" --repeats "$(pick 10 5)" \
        --model "$(pick medium quickstart)" --micro_batch "$(pick 16 8)" --out train.json
)
for flags in "512 --encodings k-cable-v1" "1024 --encodings cable-v1"; do
    experiment "${section[@]}" --block_size $flags "$@"
done
exit $failed
