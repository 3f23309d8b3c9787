#!/usr/bin/env bash
# Trained recall: do models learn to copy symbols that return, and over which distances?
#
#     bash scripts/trained_recall.sh                                # flags go to train_gpt.py
#     ENCODINGS="cable rope" SEEDS="1 2 3" bash scripts/trained_recall.sh
#     PLUGIN=my.py ENCODINGS=recency DISTANCES=1x,4x,16x,64x bash scripts/trained_recall.sh
#
# Trains on the recall task at 64 tokens (configs/recall.yaml) and evaluates at distances of up to 16
# times that length (eval_recall.py), with random symbols and with text as filler.
#
# Cost: 9.8M tokens per training (0.1M parameters), under five minutes of one CPU core, and two
# minutes for its evaluation. Finished steps are skipped, interrupted ones are resumed. OUT is the
# folder of the results, DATA the folder of the shards, TRIALS the number of sequences at each
# distance. DRY_RUN=1 prints the commands and the cost.

own_settings="OUT DISTANCES TRIALS" arguments="flags of train_gpt.py"
source "$(dirname "$0")/common.sh"
encodings=${ENCODINGS:-rope t5 alibi kerple fox sandwich cable k-cable nope rope+cable learnable sinusoidal}
NPROC=1 SCALE=small
OUT=${OUT:-runs/recall} DATA=${DATA:-data/stdlib}
check_settings

run python prepare_text.py --out_dir "$DATA" || finish
for seed in $SEEDS; do
    for pe in $encodings; do
        out=$OUT/$pe
        if [ "$seed" != 1 ]; then out+=-seed$seed; fi
        queue_training "$out" --config configs/recall.yaml --data "$DATA" --pe "$pe" --seed "$seed" \
            --resume "$@"
    done
done
train_queued
evaluate_with eval_recall.py --data "$DATA" ${DISTANCES:+--distances "$DISTANCES"} \
    ${TRIALS:+--trials "$TRIALS"}
run python report.py "${records[@]}" --out_dir "$OUT" || true
finish
