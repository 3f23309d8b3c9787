# What every script opens with: source "$(dirname "$0")/common.sh"
# Works from the repository's root, in the active virtual environment or in .venv, which `install` makes.

set -euo pipefail
trap 'exit 130' INT    # a training ends well when it is interrupted: it must not be taken for done, and the next one started
trap 'exit 143' TERM
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_torch='import torch; v = torch.__version__.split("."); assert (int(v[0]), int(v[1])) >= (2, 11)'

# install FILE...: the requirements in these files; an installed torch >= 2.11, of whatever build, stays as it is.
install() {
    if [ -n "${INSTALLED:-}" ]; then return; fi # by the script that calls this one
    if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
        if [ ! -x .venv/bin/pip ]; then
            python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
                { echo "error: $(python3 --version) is too old: install Python 3.11 or later" >&2; exit 2; }
            local site=""
            if python3 -c "$has_torch" 2>/dev/null; then site=--system-site-packages; fi
            python3 -m venv $site .venv ||
                { echo "error: no virtual environment could be made: install python3-venv, or activate one" >&2; exit 2; }
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
    python -m pip install --quiet --disable-pip-version-check -r "$requirements"
    rm "$requirements"
    export INSTALLED=1
}

# Experiments of the papers. A script names its encodings, data, trainings, evaluations and report, in the papers' own lengths, by the
# functions below. What is done is not repeated, what was interrupted goes on, and what fails is told at the end. Settings:
#
#   SCALE=full     the papers' networks, data and lengths
#         small    the quick start's network on bytes of the same data, 4.1M tokens each, a quarter of every length: hours on a CPU
#         smoke    a few steps on the embedded corpus, a 32nd of every length: does everything work?
#   NPROC          GPUs of this machine to train on (all there are)
#   ENCODINGS      in place of the script's      SEEDS   as in "1 2 3" (1)
#   EVAL_TOKENS    of text for each length       FLAGS   further flags of train_gpt.py
#   DRY_RUN=1      shows what would be run, and what the trainings would cost
#   DATA           folder of shards to take for everything; none: they are prepared under data/
#   RUNS           folder of all that is made (runs)

SCALE=${SCALE:-full} SEEDS=${SEEDS:-1} RUNS=${RUNS:-runs}
case $SCALE in
    full) shrink=1 eval_tokens=10000000 ;;
    small) shrink=4 eval_tokens=131072 ;;
    smoke) shrink=32 eval_tokens=1024 ;;
    *) echo "error: SCALE=$SCALE: choose full, small or smoke" >&2; exit 2 ;;
esac
runs=() records=() failed=()

# experiment NAME ENCODING...: what the script makes, and of which encodings.
experiment() {
    name=$1
    shift
    encodings=${ENCODINGS:-$*}
    install requirements.txt
    NPROC=${NPROC:-$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}
}

# run COMMAND...: shown, and run unless this is a dry run. What fails is kept for `finish`.
run() {
    echo "+ $*"
    if [ -z "${DRY_RUN:-}" ] && ! "$@"; then failed+=("$*") && return 1; fi
}

# launch FLAG...: train_gpt.py, on as many GPUs as there are.
launch() {
    if [ "$NPROC" -gt 1 ]; then run torchrun --standalone --nproc_per_node="$NPROC" train_gpt.py "$@"; else run python train_gpt.py "$@"; fi
}

# use DATASET [SPLIT]: the shards for all that follows, prepared where they are not there, and what is evaluated on (val).
use() {
    local dataset=$1
    data=data/$1 split=${2:-val}
    if [ -n "${DATA:-}" ]; then
        data=$DATA
        if [ -z "$(find "$data" -name "*_${split}_*.bin")" ]; then split=val; fi
        return
    fi
    local make=()
    case $SCALE in small) data+=-bytes make=(--tokenizer bytes) ;; smoke) dataset=stdlib data=data/stdlib split=val ;; esac
    case $dataset in
        stdlib) make=(prepare_text.py) ;;
        wikitext103) make=(prepare_wikitext.py "${make[@]}") ;;
        fineweb-edu) make=(prepare_fineweb.py "${make[@]}") ;;
        fineweb) make=(prepare_fineweb.py "${make[@]}" --dataset HuggingFaceFW/fineweb) ;;
    esac
    if [ "$dataset" = fineweb ] || { [ "$dataset" = fineweb-edu ] && [ "$SCALE" = small ]; }; then make+=(--shards 2); fi
    run python "${make[@]}" --out_dir "$data" || finish
}

# losses FILE: a plot of the runs' losses, in the folder of the report.
losses() { run python plot.py losses "${runs[@]}" --out "$RUNS/$SCALE/$name/$1.png" || true; }

# full FLAG...: these flags at SCALE=full, none at others.
full() { if [ "$SCALE" = full ]; then echo "$@"; fi; }

# train CONFIG LENGTH [FLAG...]: every encoding and seed, at the paper's LENGTH. The runs are those that follow are about.
train() {
    local config=configs/$1.yaml length=$2 further="${*:3}" costed="" pe seed flags micro_batch own
    further=${further// /}
    local folder=$RUNS/$SCALE/$1-$2${further//--/-}
    case $SCALE in small | smoke) config=configs/$SCALE.yaml ;; esac
    micro_batch=$(sed -n 's/^micro_batch: *\([0-9]*\).*/\1/p' "$config")
    own=$(sed -n 's/^block_size: *\([0-9]*\).*/\1/p' "$config") length=$((length / shrink)) # own: what micro_batch belongs to
    flags=(--config "$config" --data "$data" --block_size $length --micro_batch $((micro_batch * ${own:-1024} / length)) "${@:3}")
    runs=() records=()
    for seed in $SEEDS; do
        for pe in $encodings; do
            local out=$folder/$pe
            if [ "$seed" != 1 ]; then out+=-seed$seed; fi
            launch "${flags[@]}" --pe "$pe" --seed "$seed" --out_dir "$out" --resume ${FLAGS:-} || continue
            runs+=("$out")
            if [ -n "${DRY_RUN:-}" ] && [ -z "$costed" ]; then
                python train_gpt.py "${flags[@]}" --pe "$pe" ${FLAGS:-} --dry_run
                costed=1
            fi
        done
    done
    echo "${#runs[@]} trainings in $folder"
}

# adapt RUN PE [FLAG...]: the weights of RUN go on under another encoding, in a folder beside it; --steps 0: as they are. It joins the
# runs that what follows is about.
adapt() {
    local further="${*:2}" out NPROC=$NPROC
    if [ "$SCALE" != full ]; then NPROC=1; fi # a step may be a single text
    further=${further// /} out=$1-${further//--/-}
    launch --config "$1/config.yaml" --init_from "$1" --pe "${@:2}" --out_dir "$out" --resume ${FLAGS:-} && runs+=("$out") || true
}

# tune CONFIG LENGTH LR...: trains seed 1 at each learning rate, in rising order, and then at the double of the last as long as the last
# is the best: a best at the edge would say nothing of what lies beyond. The one of the lowest validation loss is then $lr.
tune() {
    local tried=() rates=("${@:3}") best
    while [ ${#rates[@]} -gt 0 ]; do
        for lr in "${rates[@]}"; do SEEDS=1 train "$1" "$2" --lr "$lr" && tried+=("${runs[@]}"); done
        if [ -n "${DRY_RUN:-}" ] || [ ${#tried[@]} = 0 ]; then return; fi
        best=$(python -c 'import sys; from runtime.checkpoints import validation_loss; print(min(sys.argv[1:], key=validation_loss))' "${tried[@]}")
        best=${best%/*} best=${best##*-lr} rates=()
        if [ "$best" = "$lr" ] && [ "$SCALE" != smoke ]; then rates=("$(python -c "print(f'{2 * $lr:g}')")"); fi
    done
    lr=$best
}

# shrunk LENGTHS: those of the paper, as in 512,1024, at this scale.
shrunk() {
    local length lengths=""
    for length in ${1//,/ }; do lengths+=,$((length / shrink)); done
    echo "${lengths#,}"
}

# evaluate LENGTHS [FLAG...]: perplexity of the runs at the paper's lengths.
evaluate() {
    measure eval_extrapolation.py --data "$data" --split "$split" --lengths "$(shrunk "$1")" --max_tokens "${EVAL_TOKENS:-$eval_tokens}" "${@:2}"
}

# last_tokens LENGTHS [FLAG...]: perplexity of the same tokens at each of the paper's lengths: of the last one of a thousand windows, at
# other scales of more tokens of fewer windows.
last_tokens() {
    local targets=1 windows=1000
    case $SCALE in small) targets=64 windows=250 ;; smoke) targets=8 windows=4 ;; esac
    measure eval_extrapolation.py --data "$data" --split "$split" --lengths "$(shrunk "$1")" --protocol same-targets --targets $targets \
        --windows $windows "${@:2}"
}

# reach LENGTHS: the receptive fields of the runs at the paper's lengths.
reach() {
    local windows=100
    if [ "$SCALE" = smoke ]; then windows=4; fi
    measure eval_receptive_field.py --data "$data" --split "$split" --lengths "$(shrunk "$1")" --windows $windows
}

# recall DISTANCES: what the runs make of what they read so many tokens before, by the paper's lengths.
recall() {
    local trials=250 passage=64
    case $SCALE in small) trials=100 ;; smoke) trials=4 passage=8 ;; esac
    measure eval_recall.py --data "$data" --split "$split" --distances "$(shrunk "$1")" --trials $trials --passage $passage
}

# finetune: the encoders of the runs learn to find texts, and are what follows is about: on MS MARCO at SCALE=full, at others on triplets
# of the same text, of which the task is made too.
finetune() {
    local encoders=("${runs[@]}") encoder made=$RUNS/$SCALE/$name-task flags sizes gpu=${CUDA_VISIBLE_DEVICES-0} seed
    runs=() records=() task=(--data "$made")
    case $SCALE in
        full) task=() flags=() ;;
        small) flags=(--samples 6400 --batch 64 --lr 1e-3) sizes=(--passage 512 --length 4096 --documents 500) ;;
        smoke) flags=(--samples 8 --batch 4) sizes=(--triplets 8 --passage 400 --length 512 --documents 12 --questions 6) ;;
    esac
    if [ "$SCALE" != full ]; then
        flags+=(--data "$made/triplets.jsonl")
        if [ ! -d "$made" ]; then run python -m retrieval.prepare "$data" "${sizes[@]}" --out_dir "$made" || finish; fi
    fi
    for encoder in "${encoders[@]}"; do
        seed=1
        case $encoder in *-seed*) seed=${encoder##*-seed} ;; esac
        if [ ! -d "$encoder-exported" ]; then run python export_hf.py "$encoder" --out_dir "$encoder-exported" || continue; fi
        run env CUDA_VISIBLE_DEVICES="${gpu%%,*}" python -m retrieval.finetune "$encoder-exported" "${flags[@]}" \
            --seed $seed --out_dir "$encoder-retrieval" --resume || continue
        runs+=("$encoder-retrieval")
    done
}

# measure PROGRAM FLAG...: one question about the runs. Its records are what `report` is about.
measure() {
    if [ ${#runs[@]} = 0 ]; then return; fi
    local told record
    told=$(mktemp)
    run python $1 "${runs[@]}" "${@:2}" > >(tee "$told") || true
    wait $! # for tee
    while read -r record; do records+=("$record"); done < <(sed -n 's/^record: //p' "$told")
    rm "$told"
}

# report PAPER [NAME]: tables and plots of the records, beside results/paper/PAPER.csv where that is not "-".
report() {
    local flags=() out=$RUNS/$SCALE/$name${2:+/$2}
    if [ "$1" != - ]; then flags=(--paper "results/paper/$1.csv"); fi
    if [ -n "${DRY_RUN:-}" ] || [ ${#records[@]} -gt 0 ]; then
        run python report.py "${records[@]}" "${flags[@]}" --out_dir "$out" || true
    fi
}

# finish: what failed, if anything.
finish() {
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'error: failed: %s\n' "${failed[@]}" >&2
        exit 1
    fi
    exit 0
}
