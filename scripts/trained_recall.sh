#!/usr/bin/env bash
# Trained recall: do models learn to copy symbols that return, and over which distances?
#
#     bash scripts/trained_recall.sh
#     bash scripts/trained_recall.sh --encodings cable rope --seeds 1 2 3
#     bash scripts/trained_recall.sh --plugin my.py --encodings recency --recall 1x,4x,16x,64x
#
# Trains on the recall task at 64 tokens (configs/recall.yaml) and evaluates at distances of up to 16
# times that length (eval_recall.py), with random symbols and with text as filler.
#
# Cost: 9.8M tokens per training (0.1M parameters), under five minutes of one CPU core, and two
# minutes for its evaluation.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name recall --fixed --data stdlib --train recall --encodings \
    rope t5 alibi kerple fox sandwich cable k-cable nope rope+cable learnable sinusoidal \
    --recall 1x,4x,16x "$@"
