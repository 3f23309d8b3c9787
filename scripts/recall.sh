#!/usr/bin/env bash
# Recall by distance: how much a passage read earlier helps to predict it again.
#
#     bash scripts/recall.sh
#     bash scripts/recall.sh --scale small --data data/english    # results/reproduction has the results
#
# Distances go up to 16 times the training length (eval_recall.py). For models that are trained to
# copy: trained_recall.sh.
#
# Cost: data sets: 1, trainings: 10, evaluations: 10; 8.5e19 FLOPs; 60 h of one H100; disk 64.5
# GB; download 28.0 GB. Six of the trainings are shared with table4.sh.

source "$(dirname "$0")/activate.sh"
exec python run_experiment.py --name recall --data fineweb-edu --train fineweb-edu_small \
    --encodings cable k-cable alibi kerple fox t5 rope rope+cable nope sinusoidal \
    --recall 256,512,1024,2048,4096,8192,16384 "$@"
