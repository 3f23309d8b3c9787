# Functions shared by all scripts: source "$(dirname "$0")/common.sh"
#
# Scripts run from the repository's root, in the active virtual environment or in .venv, which
# `install_requirements` creates.

set -euo pipefail

# invalid MESSAGE: print an error and exit with status 2.
invalid() {
    echo "error: $1" >&2
    exit 2
}

# Settings are environment variables, or NAME=value after the script's name, which take precedence.
# A script may set, before it sources this file:
#   own_settings      names of settings that the other scripts do not have
#   arguments         what the words after its settings are (default: none are accepted)
setting_names="SCALE NPROC JOBS ENCODINGS PLUGIN SEEDS EVAL_TOKENS FLAGS DRY_RUN DATA RUNS"
setting_names+=${own_settings:+ $own_settings}
while [[ ${1:-} =~ ^([A-Za-z_]+)= ]]; do
    if [[ " $setting_names " != *" ${BASH_REMATCH[1]} "* ]]; then
        invalid "${0##*/} has no setting ${BASH_REMATCH[1]}: use ${setting_names// /, }"
    fi
    export "$1"
    shift
done
if [ $# -gt 0 ] && [ -z "${arguments:-}" ]; then
    invalid "${0##*/} does not accept '$1': pass settings as NAME=value, as in SCALE=small"
fi

# A training that is interrupted exits with status 0, so the script itself must stop.
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_torch='import torch
major, minor = torch.__version__.split(".")[:2]
assert (int(major), int(minor)) >= (2, 11)'

# install_requirements FILE...: install the requirements in these files. An installed torch >= 2.11,
# of whatever build, is kept. Skipped where a calling script did it (INSTALLED). With DRY_RUN, nothing
# is installed: an environment is activated if there is one.
install_requirements() {
    if [ -n "${INSTALLED:-}" ]; then return; fi
    if [ -n "${DRY_RUN:-}" ]; then
        if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then
            source .venv/bin/activate
        elif ! command -v python >/dev/null; then
            python() { python3 "$@"; }
        fi
        return
    fi
    if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
        if [ ! -x .venv/bin/pip ]; then
            if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
                echo "error: $(python3 --version) is too old: install Python 3.11 or later" >&2
                exit 2
            fi
            local site=""
            if python3 -c "$has_torch" 2>/dev/null; then site=--system-site-packages; fi
            if ! python3 -m venv $site .venv; then
                echo "error: cannot create .venv: install python3-venv, or activate an environment" >&2
                exit 2
            fi
        fi
        source .venv/bin/activate
    fi
    local requirements
    requirements=$(mktemp)
    if python -c "$has_torch" 2>/dev/null; then
        cat "$@" | grep -v '^torch' >"$requirements"
    else
        cat "$@" >"$requirements"
    fi
    # --no-compile: Python compiles the modules that are imported, a small part of them.
    python -m pip install --quiet --no-compile --disable-pip-version-check -r "$requirements"
    rm "$requirements"
    export INSTALLED=1
}

# Experiments of the papers. A script names its encodings, data, trainings, evaluations and report
# with the functions below, using the papers' own lengths. Finished steps are skipped, interrupted
# ones are resumed, and failures are listed at the end. Settings:
#
#   SCALE=full     the papers' networks, data and lengths
#         small    the quick start's network on bytes of the same data, 4.1M tokens per training,
#                  every length divided by 4: hours on a CPU
#         smoke    a few steps on the Python standard library, every length divided by 32: a functional test
#   NPROC          number of GPUs on this machine to train on (default: all)
#   JOBS           number of trainings to run side by side (default: auto, which is one per core on a
#                  CPU, and one on GPUs)
#   ENCODINGS      encodings to use instead of the script's
#   PLUGIN         files with encodings of your own, separated by spaces: --plugin of every program
#   SEEDS          seeds, as in "1 2 3" (default: 1)
#   EVAL_TOKENS    evaluate at most so many tokens at each length (full: 0.1B, which is all of FineWeb's
#                  validation split and of WikiText-103's test set; small: 131,072; smoke: 1,024)
#   FLAGS          additional flags of train_gpt.py; outputs are in a folder below RUNS, as in
#                  runs/attn_scale1/ for FLAGS="--attn_scale 1"
#   DRY_RUN=1      print the commands, and the cost of each training and of all; run nothing
#   DATA           folder of shards to use for everything (default: prepared under data/)
#   RUNS           folder for all outputs (default: runs); another one for each DATA at SCALE=full
#
# Invalid settings end a script with one line and status 2 before it installs or prepares anything;
# ENCODINGS and the content of PLUGIN and DATA are checked after the installation.

if [[ ! ${DRY_RUN:-1} = 1 ]]; then
    invalid "DRY_RUN=$DRY_RUN is invalid: use DRY_RUN=1, or leave it out"
fi
SCALE=${SCALE:-full} SEEDS=${SEEDS:-1} RUNS=${RUNS:-runs}
if [ -n "${DATA:-}" ]; then DATA=${DATA%/}; fi
case $SCALE in
    full) scale_divisor=1 octaves=0 eval_tokens=100000000 ;; # all of FineWeb's split val
    small) scale_divisor=4 octaves=2 eval_tokens=131072 ;;
    smoke) scale_divisor=32 octaves=5 eval_tokens=1024 ;;
    *) invalid "SCALE=$SCALE is unknown: use full, small or smoke" ;;
esac
if [ -n "${FLAGS:-}" ]; then
    flags_name=${FLAGS// /} flags_name=${flags_name#--} flags_name=${flags_name//--/-}
    flags_name=${flags_name//\//_}
    if [[ $RUNS != *"/$flags_name" ]]; then RUNS+=/$flags_name; fi # unless a calling script did it
fi
# Variables that the functions below set and use:
#   scale_divisor octaves    all lengths are divided by scale_divisor = 2^octaves
#   name encodings    of the experiment (experiment)
#   data split        folder of the shards, split to evaluate on (prepare_data)
#   folder            of the latest trainings (queue_trainings)
#   runs records      the current runs and records (train, evaluate_with)
#   rate              the best learning rate of each encoding (tune_learning_rates)
#   task              flags of python -m retrieval.evaluate (finetune_encoders)
#   failed            commands that failed (run)
#   queued queue      runs and commands that `train_queued` will run, and the latter's words
#   queue_words       (queue_training)
#   planned           the trainings of a DRY_RUN (launch_training)
#   plugin_flags      --plugin FILE for every file in PLUGIN
# A script may set, before it calls `experiment`:
#   requirements      files of requirements
#   objective         clm: it trains decoders; mlm: encoders
declare -A rate=()
runs=() records=() failed=() planned=() plugin_flags=() queued=() queue=() queue_words=()
for plugin in ${PLUGIN:-}; do plugin_flags+=(--plugin "$plugin"); done
requirements=(requirements.txt) objective=clm

# experiment NAME ENCODING...: start an experiment with these default encodings: check the settings and
# install the requirements.
experiment() {
    name=$1
    shift
    encodings=${ENCODINGS:-$*}
    if [ -n "${DATA:-}" ] && [ ! -d "$DATA" ]; then
        invalid "DATA=$DATA is not a folder: pass a folder of shards (docs/data.md)"
    fi
    check_settings ${DATA:+--data "$DATA"}
}

# check_settings [FLAG...]: check the settings, install the requirements, and set NPROC and JOBS. Flags
# go to scripts/plan.py check.
check_settings() {
    local plugin number gpus cores
    if [[ ! $SEEDS =~ ^[[:space:]]*[0-9]{1,18}([[:space:]]+[0-9]{1,18})*[[:space:]]*$ ]]; then
        invalid "SEEDS=$SEEDS is invalid: use integers separated by spaces, as in SEEDS=\"1 2 3\""
    fi
    for number in NPROC EVAL_TOKENS; do
        if [[ ! ${!number:-1} =~ ^[1-9][0-9]*$ ]]; then
            invalid "$number=${!number} is invalid: use a positive integer"
        fi
    done
    if [[ ! ${JOBS:=auto} =~ ^(auto|[1-9][0-9]*)$ ]]; then
        invalid "JOBS=$JOBS is invalid: use auto or a positive integer"
    fi
    for plugin in ${PLUGIN:-}; do
        if [ ! -f "$plugin" ]; then
            invalid "PLUGIN: $plugin is not a file: pass Python files, absolute or relative to $PWD"
        fi
    done
    install_requirements "${requirements[@]}"
    if [ -n "${COLLECT_IN:-}" ]; then return; fi
    read -r gpus cores < <(python scripts/plan.py check --encodings "$encodings" \
        --objective "$objective" "${plugin_flags[@]}" "$@") || exit 2
    NPROC=${NPROC:-$gpus}
    if [ "$JOBS" = auto ]; then JOBS=$cores; fi
    if [ "$NPROC" -gt 1 ]; then JOBS=1; fi
}

# run COMMAND...: print a command and, unless DRY_RUN is set, run it. Failures are kept for `finish`.
run() {
    echo "+ $*"
    if [ -z "${DRY_RUN:-}" ] && ! "$@"; then failed+=("$*") && return 1; fi
}

# launch_training FLAG...: run train_gpt.py on NPROC GPUs.
launch_training() {
    local command=(train_gpt.py "$@" "${plugin_flags[@]}")
    if [ -n "${DRY_RUN:-}" ]; then planned+=("${command[@]}"); fi
    if [ "$NPROC" -gt 1 ]; then
        run torchrun --standalone --nproc_per_node="$NPROC" "${command[@]}"
    else
        run python "${command[@]}"
    fi
}

# queue_training OUT FLAG...: train into OUT, at once or, with JOBS > 1, when `train_queued` is called.
# OUT joins the current runs if the training succeeds.
queue_training() {
    local command=(train_gpt.py "${@:2}" --out_dir "$1")
    if [ "$JOBS" = 1 ] || [ -n "${DRY_RUN:-}" ]; then
        if launch_training "${command[@]:1}"; then runs+=("$1"); fi
        return
    fi
    command+=("${plugin_flags[@]}")
    echo "+ python ${command[*]}"
    queued+=("$1") queue+=("python ${command[*]}") queue_words+=("${command[@]}")
}

# train_queued: run the queued trainings, JOBS at a time.
train_queued() {
    local output i status
    if [ ${#queued[@]} = 0 ]; then return; fi
    output=$(mktemp)
    python scripts/side_by_side.py "$JOBS" "$output" "${queue_words[@]}" || exit $?
    mapfile -t status <"$output"
    rm "$output"
    for i in "${!queued[@]}"; do
        if [ "${status[i]}" = 0 ]; then
            runs+=("${queued[i]}")
        else
            failed+=("${queue[i]}")
        fi
    done
    queued=() queue=() queue_words=()
}

# prepare_data DATASET [SPLIT]: prepare the shards for everything that follows, unless they exist, and
# set the split to evaluate on (default: val). tokenizer, shards: those of FineWeb at SCALE=full
# (default: GPT-2's tokens, all shards).
prepare_data() {
    local dataset=$1
    data=data/$1 split=${2:-val}
    if [ -n "${DATA:-}" ]; then
        data=$DATA
        if [ -z "$(find "$data" -name "*_${split}_*.bin")" ]; then split=val; fi
        return
    fi
    local flags=() command=()
    case $SCALE in
        full) if [ -n "${tokenizer:-}" ]; then
            data+=-${tokenizer/:/} flags=(--tokenizer "$tokenizer")
        fi ;;
        small) data+=-bytes flags=(--tokenizer bytes) ;;
        smoke) dataset=stdlib data=data/stdlib split=val ;;
    esac
    case $dataset in
        stdlib) command=(prepare_text.py) ;;
        wikitext103) command=(prepare_wikitext.py "${flags[@]}") ;;
        fineweb-edu) command=(prepare_fineweb.py "${flags[@]}") ;;
        fineweb) command=(prepare_fineweb.py "${flags[@]}" --dataset HuggingFaceFW/fineweb) ;;
    esac
    if [ "$dataset" = fineweb ] || { [ "$dataset" = fineweb-edu ] && [ "$SCALE" = small ]; }; then
        command+=(--shards 2)
    elif [ "$SCALE" = full ]; then
        command+=(${shards:+--shards "$shards"})
    fi
    run python "${command[@]}" --out_dir "$data" || finish
}

# plot_losses FILE: plot the losses of the current runs into the report's folder. Their record joins
# the current records.
plot_losses() {
    local out=$RUNS/$SCALE/$name/$1
    if run python plot.py losses "${runs[@]}" --out "$out.png"; then records+=("$out.json"); fi
}

# plot_biases RUN FILE FLAG...: plot the biases of a run on this data into FILE, unless FILE is newer.
plot_biases() {
    if [ -z "${DRY_RUN:-}" ] && [ "$2" -nt "$1/log.jsonl" ]; then return; fi
    run python plot.py biases "$1" --data "$data" "${@:3}" "${plugin_flags[@]}" --out "$2" || true
}

# at_full_scale WORD...: print the words at SCALE=full, nothing otherwise.
at_full_scale() { if [ "$SCALE" = full ]; then echo "$@"; fi; }

# small_scale_lr ENCODING: print, one word per line, the --lr flag that was best for an encoding at
# SCALE=small (docs/findings/extrapolation.md); nothing where the config's is used.
small_scale_lr() {
    if [ "$SCALE" = full ]; then return; fi
    case $1 in
        alibi | kerple | rope) printf '%s\n' --lr 8e-3 ;;
        t5) printf '%s\n' --lr 1.6e-2 ;;
    esac
}

# queue_trainings CONFIG LENGTH [FLAG...]: queue a training of every encoding with every seed at the
# paper's LENGTH, and set $folder. At smaller scales all sizes have the same network, so that trainings
# on the same data are shared: the folder has the name of the data.
queue_trainings() {
    local config=configs/$1.yaml length=$2 suffix="${*:3}" trained=$1 pe seed flags out
    local micro_batch block_size
    suffix=${suffix// /}
    if [ "$SCALE" != full ]; then config=configs/$SCALE.yaml trained=${data##*/}; fi
    folder=$RUNS/$SCALE/$trained-$2${suffix//--/-}
    # Keep the tokens of a micro-batch: the config's micro_batch belongs to its block_size.
    micro_batch=$(sed -n 's/^micro_batch: *\([0-9]*\).*/\1/p' "$config")
    block_size=$(sed -n 's/^block_size: *\([0-9]*\).*/\1/p' "$config")
    length=$((length / scale_divisor))
    micro_batch=$((micro_batch * ${block_size:-1024} / length))
    flags=(--config "$config" --data "$data" --block_size $length --micro_batch $micro_batch "${@:3}")
    for seed in $SEEDS; do
        for pe in $encodings; do
            out=$folder/$pe
            if [ "$seed" != 1 ]; then out+=-seed$seed; fi
            queue_training "$out" "${flags[@]}" --pe "$pe" --seed "$seed" --resume ${FLAGS:-}
        done
    done
}

# train CONFIG LENGTH [FLAG...]: train as queue_trainings says. These become the current runs.
train() {
    runs=() records=()
    queue_trainings "$@"
    train_queued
    echo "${#runs[@]} trainings in $folder"
}

# train_from RUN PE [FLAG...]: train with another encoding from the weights of RUN, in a folder next to
# it (--steps 0: keep the weights). The result joins the current runs.
train_from() {
    local suffix="${*:2}" out NPROC=$NPROC
    if [ "$SCALE" != full ]; then NPROC=1; fi # a step may be a single sequence
    suffix=${suffix// /} out=$1-${suffix//--/-}
    launch_training --config "$1/config.yaml" --init_from "$1" --pe "${@:2}" --out_dir "$out" --resume \
        ${FLAGS:-} && runs+=("$out") || true
}

# tune_learning_rates CONFIG LENGTH LR...: train seed 1 of every encoding at each learning rate
# (ascending). While the highest is the best of an encoding, try its double. Sets ${rate[PE]} to the rate
# of the lowest validation loss; an encoding with a failed training gets none. These become the current
# runs. tuning_flags: further flags of these trainings.
tune_learning_rates() {
    local encodings=$encodings tried=() rates=("${@:3}") number=$(($# - 2)) lr pe run best of_pe
    local lowest='import sys; from runtime.run_folder import validation_loss
print(min(sys.argv[1:], key=validation_loss))'
    while [ -n "$encodings" ]; do
        runs=()
        for lr in "${rates[@]}"; do
            SEEDS=1 queue_trainings "$1" "$2" ${tuning_flags:-} --lr "$lr"
        done
        train_queued
        tried+=("${runs[@]}")
        local untuned=() highest=${rates[-1]}
        if [ -n "${DRY_RUN:-}" ]; then # stands for the best
            for pe in $encodings; do rate[$pe]=$highest; done
            return
        fi
        for pe in $encodings; do
            of_pe=()
            for run in "${tried[@]}"; do
                if [ "${run##*/}" = "$pe" ]; then of_pe+=("$run"); fi
            done
            if [ ${#of_pe[@]} -lt $number ]; then # one failed
                unset "rate[$pe]"
                continue
            fi
            best=$(python -c "$lowest" "${of_pe[@]}")
            best=${best%/*} rate[$pe]=${best##*-lr}
            if [ "${rate[$pe]}" = "$highest" ] && [ "$SCALE" != smoke ]; then untuned+=("$pe"); fi
        done
        runs=("${tried[@]}")
        encodings=${untuned[*]:-} rates=("$(python -c "print(f'{2 * $highest:g}')")")
        number=$((number + 1))
    done
}

# scaled_lengths LENGTHS: print the paper's lengths, as in 512,1024, at this scale.
scaled_lengths() {
    local length lengths=""
    for length in ${1//,/ }; do lengths+=,$((length / scale_divisor)); done
    echo "${lengths#,}"
}

# evaluate_with PROGRAM FLAG...: run an evaluation program on the current runs. Its records join the
# current records.
evaluate_with() {
    if [ ${#runs[@]} = 0 ]; then return; fi
    local output record
    output=$(mktemp)
    # PROGRAM may be "-m module".
    run python $1 "${runs[@]}" "${@:2}" "${plugin_flags[@]}" > >(tee "$output") || true
    wait $! # for tee
    while read -r record; do records+=("$record"); done < <(sed -n 's/^record: //p' "$output")
    rm "$output"
}

# evaluate_perplexity LENGTHS [FLAG...]: perplexity of the current runs at the paper's lengths.
evaluate_perplexity() {
    evaluate_with eval_extrapolation.py --data "$data" --split "$split" \
        --lengths "$(scaled_lengths "$1")" --max_tokens "${EVAL_TOKENS:-$eval_tokens}" "${@:2}"
}

# evaluate_same_targets LENGTHS [FLAG...]: perplexity of the same tokens at each of the paper's lengths:
# at SCALE=full the last token of 1,000 windows, at smaller scales more tokens of fewer windows.
evaluate_same_targets() {
    local targets=1 windows=1000
    case $SCALE in
        small) targets=64 windows=250 ;;
        smoke) targets=8 windows=4 ;;
    esac
    evaluate_with eval_extrapolation.py --data "$data" --split "$split" \
        --lengths "$(scaled_lengths "$1")" --protocol same-targets --targets $targets \
        --windows $windows "${@:2}"
}

# evaluate_receptive_field LENGTHS [FLAG...]: receptive fields of the current runs at the paper's lengths.
evaluate_receptive_field() {
    local windows=100
    if [ "$SCALE" = smoke ]; then windows=4; fi
    evaluate_with eval_receptive_field.py --data "$data" --split "$split" \
        --lengths "$(scaled_lengths "$1")" --windows $windows "${@:2}"
}

# evaluate_recall DISTANCES [FLAG...]: recall of the current runs at the paper's distances.
evaluate_recall() {
    local trials=250 passage=64
    case $SCALE in
        small) trials=100 ;;
        smoke) trials=4 passage=8 ;;
    esac
    evaluate_with eval_recall.py --data "$data" --split "$split" --distances "$(scaled_lengths "$1")" \
        --trials $trials --passage $passage "${@:2}"
}

# finetune_encoders: export the current runs and fine-tune them for retrieval: on MS MARCO at SCALE=full,
# otherwise on triplets made from the training text, from which the task is made too. The fine-tuned
# encoders become the current runs.
finetune_encoders() {
    local encoders=("${runs[@]}") encoder made=$RUNS/$SCALE/$name-task flags sizes seed
    local gpu=${CUDA_VISIBLE_DEVICES-0}
    runs=() records=() task=(--data "$made")
    case $SCALE in
        full) task=() flags=() ;;
        small)
            flags=(--samples 6400 --batch 64 --lr 1e-3)
            sizes=(--passage 512 --length 4096 --documents 500)
            ;;
        smoke)
            flags=(--samples 8 --batch 4)
            sizes=(--triplets 8 --passage 400 --length 512 --documents 12 --questions 6)
            ;;
    esac
    if [ "$SCALE" != full ]; then
        flags+=(--data "$made/triplets.jsonl")
        if [ ! -d "$made" ]; then
            run python -m retrieval.prepare "$data" "${sizes[@]}" --out_dir "$made" || finish
        fi
    fi
    for encoder in "${encoders[@]}"; do
        seed=1
        case $encoder in *-seed*) seed=${encoder##*-seed} ;; esac
        if [ ! -d "$encoder-exported" ]; then
            run python export_hf.py "$encoder" --out_dir "$encoder-exported" "${plugin_flags[@]}" ||
                continue
        fi
        run env CUDA_VISIBLE_DEVICES="${gpu%%,*}" python -m retrieval.finetune "$encoder-exported" \
            "${flags[@]}" --seed $seed --out_dir "$encoder-retrieval" --resume \
            "${plugin_flags[@]}" || continue
        runs+=("$encoder-retrieval")
    done
}

# measure_speed PAPER SIZE...: speed and memory of training, and speed of generation, of GPT-2 of each
# size (at smaller scales: one smaller network), each with a report next to results/paper/PAPER.csv.
# sequences: those of a training step at SCALE=full (default: 4).
measure_speed() {
    local printed=$1 sizes="${*:2}" repeats=10 micro_batch=${sequences:-4}
    local trained=512,1024,2048 generated=512,1024,2048
    case $SCALE in
        small) sizes=tiny repeats=3 micro_batch=1 trained=512,2048 generated=2048 ;;
        smoke) sizes=quickstart repeats=1 micro_batch=1 trained=512,2048 generated=2048 ;;
    esac
    local size out flags
    for size in $sizes; do
        out=$RUNS/$SCALE/$name/$size records=()
        flags=(--encodings "${encodings// /,}" --model "$size" --repeats $repeats "${plugin_flags[@]}")
        run python bench.py train --context "$(scaled_lengths $trained)" --micro_batch $micro_batch \
            "${flags[@]}" --out "$out/train.json" && records+=("$out/train.json") || true
        run python bench.py generate --context "$(scaled_lengths $generated)" \
            "${flags[@]}" --out "$out/generate.json" && records+=("$out/generate.json") || true
        report "$printed" "$size"
    done
}

# report PAPER [NAME]: tables and plots of the current records, compared with results/paper/PAPER.csv
# unless PAPER is "-". No verdicts at SCALE=smoke.
report() {
    local flags=() out=$RUNS/$SCALE/$name${2:+/$2}
    if [ "$1" != - ]; then flags=(--paper "results/paper/$1.csv"); fi
    if [ "$SCALE" = smoke ]; then flags+=(--verdicts false); fi
    if [ -n "${DRY_RUN:-}" ] || [ ${#records[@]} -gt 0 ]; then
        run python report.py "${records[@]}" "${flags[@]}" --out_dir "$out" || true
    fi
}

# finish: list the commands that failed, or print the cost of the planned trainings, and exit.
# For all_tables.sh, write the trainings and the failed commands to the folder COLLECT_IN.
finish() {
    if [ -n "${COLLECT_IN:-}" ]; then
        if [ ${#planned[@]} -gt 0 ]; then printf '%s\0' "${planned[@]}" >>"$COLLECT_IN/planned"; fi
        if [ ${#failed[@]} -gt 0 ]; then printf '%s\n' "${failed[@]}" >>"$COLLECT_IN/failed"; fi
    elif [ ${#planned[@]} -gt 0 ]; then
        python scripts/plan.py cost "$SCALE" "${planned[@]}"
    fi
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'error: failed: %s\n' "${failed[@]}" >&2
        exit 1
    fi
    exit 0
}
