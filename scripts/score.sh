#!/usr/bin/env bash
# Score card: measure encodings by a fixed budget, next to rope and cable.
#
#     bash scripts/score.sh ENCODINGS=fox
#     bash scripts/score.sh PLUGIN=my_encoding.py ENCODINGS="recency rope+recency"
#     bash scripts/score.sh --plugin my_encoding.py --pe recency    # the same, for one encoding
#
# For each encoding and seed: a training on text (configs/quickstart.yaml), its perplexity and recall at
# up to 16 times the training length and its receptive field; a training on the recall task
# (configs/recall.yaml) and its accuracy; and the speed of a training step. Writes OUT/ENCODING.json and
# prints the card (docs/scores.md). Patterns of more than two layers skip the recall task. rope and
# cable are measured first, unless OUT has their scores.
#
# Cost: 10 to 30 minutes per encoding on two CPU cores. Finished steps are skipped, interrupted ones
# are resumed. OUT is the folder of the scores, RUNS that of the runs, DATA that of the shards. FLAGS
# are flags of both trainings, for a budget of your own in another OUT, in which only cable is measured
# first. SCALE=smoke is a functional test. DRY_RUN=1 prints the commands and the cost. GPUs are not
# used, so that scores of all machines have the same budget.

words=()
while [ $# -gt 0 ]; do
    case $1 in
        --plugin) words+=("PLUGIN=${2:-}") && shift ;;
        --pe) words+=("ENCODINGS=${2:-}") && shift ;;
        *) words+=("$1") ;;
    esac
    if [ $# -gt 0 ]; then shift; fi
done
set -- "${words[@]}"
own_settings=OUT SEEDS=${SEEDS:-1 2 3}
export CUDA_VISIBLE_DEVICES=
source "$(dirname "$0")/common.sh"
references="rope cable" NPROC=1
if [ -n "${FLAGS:-}" ]; then
    references=cable
    if [ -z "${OUT:-}" ]; then
        invalid "FLAGS change the budget: pass OUT=FOLDER, too, for the scores of this budget"
    fi
fi
encodings=${ENCODINGS:-$references}
case $SCALE in
    full)
        RUNS+=/scores OUT=${OUT:-results/scores}
        text=(--config configs/quickstart.yaml) task=(--config configs/recall.yaml)
        lengths=1x,2x,4x,8x,16x max_tokens=131072 windows=10
        distances=64,256,1024,4096 trials=100 passage=64 task_trials=250
        speed=()
        ;;
    smoke)
        RUNS+=/smoke/scores OUT=${OUT:-$RUNS/json}
        text=(--config configs/smoke.yaml) task=(--config configs/recall.yaml --steps 3)
        lengths=1x,16x max_tokens=1024 windows=2
        distances=32,128,512 trials=4 passage=8 task_trials=4
        speed=(--context 32 --micro_batch 2 --rounds 2)
        ;;
    *) invalid "SCALE=$SCALE has no budget: use full or smoke" ;;
esac
if [ -n "${FLAGS:-}" ]; then distances=1x,4x,16x; fi # they may set the training length
if [ -n "${EVAL_TOKENS:-}" ]; then
    invalid "the budget is fixed: remove EVAL_TOKENS"
fi
check_settings ${DATA:+--data "$DATA"}

prepare_data stdlib
encodings=$(python -m scores.card --missing $encodings --seeds "$SEEDS" \
    --references "$references" --data "$data" --out_dir "$OUT" "${plugin_flags[@]}") || exit 2

# list_runs TASK PE: set the current runs to those of an encoding, one for each seed.
list_runs() {
    local seed
    runs=()
    for seed in $SEEDS; do
        if [ "$seed" = 1 ]; then runs+=("$RUNS/$1/$2"); else runs+=("$RUNS/$1/$2-seed$seed"); fi
    done
}

# fits_task PE: whether the network of the recall task has all layers of an encoding's pattern.
fits_task() {
    local number layers=0
    for number in $(grep -o '@[0-9]*' <<<"$1"); do layers=$((layers + ${number#@})); done
    [ $layers -le 2 ]
}

# Seconds on two cores of the three steps of each encoding: training, evaluation, speed. 0 if there are
# results.
costs=()
for pe in $encodings; do
    list_runs "$(fits_task "$pe" && echo recall || echo text)" "$pe"
    if compgen -G "${runs[-1]}/eval_*.json" >/dev/null; then costs+=(0 0); else costs+=(700 240); fi
    if [ -f "$RUNS/speed/$pe.json" ]; then costs+=(0); else costs+=(60); fi
done

# progress WORD...: print the number of the next step, what it does, and the time left.
steps=0
progress() {
    local before=0 left=0 i
    for i in "${!costs[@]}"; do
        if [ "$i" -lt $steps ]; then before=$((before + costs[i])); else left=$((left + costs[i])); fi
    done
    if [ $before -gt 0 ]; then left=$((SECONDS * left / before)); fi
    steps=$((steps + 1))
    echo "== step $steps of ${#costs[@]}: $*; about $((left / 60 + 1)) min left"
}

# train_seeds TASK PE FLAG...: train an encoding with every seed.
train_seeds() {
    local seed folders
    list_runs "$1" "$2"
    folders=("${runs[@]}")
    for seed in $SEEDS; do
        queue_training "${folders[0]}" "${@:3}" --data "$data" --pe "$2" --seed "$seed" --resume \
            ${FLAGS:-}
        folders=("${folders[@]:1}")
    done
}

for pe in $encodings; do
    progress "train $pe"
    train_seeds text "$pe" "${text[@]}"
    if fits_task "$pe"; then train_seeds recall "$pe" "${task[@]}"; fi
    train_queued

    progress "evaluate $pe"
    list_runs text "$pe"
    evaluate_with eval_extrapolation.py --data "$data" --lengths $lengths --max_tokens $max_tokens
    evaluate_with eval_recall.py --data "$data" --distances $distances --trials $trials \
        --passage $passage
    runs=("${runs[0]}")
    evaluate_with eval_receptive_field.py --data "$data" --lengths 4x --windows $windows
    list_runs recall "$pe"
    if ! fits_task "$pe"; then runs=(); fi
    evaluate_with eval_recall.py --data "$data" --distances 1x,4x,16x --trials $task_trials

    progress "measure the speed of $pe"
    if [ ! -f "$RUNS/speed/$pe.json" ]; then
        run python -m scores.speed "$pe" "${speed[@]}" --out "$RUNS/speed/$pe.json" \
            "${plugin_flags[@]}" || true
    fi
    run python -m scores.card "$pe" --runs "$RUNS" --out_dir "$OUT" --seeds "$SEEDS" \
        --references "$references" "${plugin_flags[@]}" || true
done
finish
