#!/usr/bin/env bash
# Score card: measure encodings by a fixed budget, next to rope and cable.
#
#     bash scripts/score.sh --plugin my_encoding.py --encodings recency rope+recency
#     SCORES=runs/lr1e-3/json bash scripts/score.sh --encodings cable fox -- --lr 1e-3    # another budget
#
# For each encoding and seed: a training on text (configs/score.yaml), its perplexity and recall at
# up to 16 times the training length; a training on the recall task
# (configs/recall.yaml) and its accuracy; and the speed of a training step. Writes SCORES/ENCODING.json
# (default: results/scores) and prints the card (docs/scores.md), which needs the scores of rope and
# cable there. The recall task has two layers: patterns of more fail there and have no trained recall.
#
# Cost: 10 to 30 minutes per encoding on two CPU cores; GPUs are not used, for equal budgets.

source "$(dirname "$0")/activate.sh"
export CUDA_VISIBLE_DEVICES=
common="--fixed --data stdlib --seeds 1 2 3 --encodings rope cable"
python run_experiment.py --name scores/text $common --train score --perplexity 1x,2x,4x,8x,16x \
    --eval_tokens 131072 --recall "64,256,1024,4096 --trials 100" "$@"
python run_experiment.py --name scores/recall $common --train recall --recall 1x,4x,16x --commands \
    "bench.py train --encodings {pe} {plugins} --model quickstart --vocab_size 320 --micro_batch 16
        --context 256 --repeats 40 --device cpu --out {root}/scores/speed/{pe}.json" \
    "-m scores.table {pes} {plugins} --runs {root}/scores --out_dir ${SCORES:-results/scores}" "$@"
