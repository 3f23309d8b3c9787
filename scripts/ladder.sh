#!/usr/bin/env bash
# Ladder of sizes: do the claims hold from 0.8M parameters to GPT-2 medium? (docs/scaling.md)
#
#     bash scripts/ladder.sh RUNG=2 DATA=data/mine-bpe    # shards of your own; default: FineWeb-Edu
#
# RUNG  network               tokens             trained at   perplexity at
# 1     0.8M, 4 x 128         4.1M bytes         256          128 to 4,096 (reproduction.sh)
# 2     5.8M, 6 x 256         10M of bpe:4096    512          512 to 8,192
# 3     45M, GPT-2 tiny       4.2M of GPT-2's    1,024        512 to 15,360; a window of 131,072
# 4     GPT-2 small, medium   10B of GPT-2's     1,024        512 to 15,360 (runs of table4.sh and
#                                                             table1_fineweb.sh)
#
# Every training is evaluated when it ends: perplexity, recall of text, receptive field, on rungs 3
# and 4 HellaSwag (HELLASWAG: a local file).
# cable, rope and the candidate of docs/extrapolate-and-remember.md have all SEEDS (default: 1 2 3;
# rungs 3 and 4: 1), others the first. Outputs are in RUNS/SCALE/ladder.
#
# Learning rates: rung 2 tries 1e-3, 2e-3 and 4e-3 for cable, rope and alibi with a quarter of the
# steps, and more while the highest is the best. Others have cable's. Rung 3 has rung 2's times
# 256/512, the ratio of the widths. Rung 4 has the paper's. LR=2e-3: one rate for all, no search.
# Encodings in RUNS/SCALE/ladder/learning_rates.txt are not tuned again.
#
# Cost in minutes of one CPU core: rung 2: 12 trainings of 50 to 65 (kerple: 140), nine of a quarter
# of that, 12 evaluations of 25. Rung 3: three trainings of 130, three evaluations of 75. Rung 4
# (computed): 20 trainings, 9.6 days of one H100.

own_settings="RUNG LR HELLASWAG"
RUNG=${RUNG:-2}
for word in "$@"; do
    case $word in RUNG=*) RUNG=${word#RUNG=} ;; esac
done
case $RUNG in 1 | 2) SEEDS=${SEEDS:-1 2 3} ;; esac
source "$(dirname "$0")/common.sh"

length=1024 lengths=512,1024,2048,4096,8192,15360 distances=256,1024,4096,15360
candidate=rope:heads_percent=75+alibi:heads_percent=75
case $RUNG in
    1)
        if [ "$SCALE" = full ]; then SCALE=small; fi # reproduction.sh has this size only
        export SCALE SEEDS
        exec bash scripts/reproduction.sh
        ;;
    2)
        configs=ladder_2 length=512 lengths=512,1024,2048,4096,8192 distances=256,512,2048,8192
        defaults=(cable rope "$candidate" alibi rope+cable kerple) shards=2 tokenizer=bpe:4096
        ;;
    3) configs=ladder_3 defaults=(cable rope "$candidate") shards=2 ;;
    4)
        configs="fineweb-edu_small fineweb-edu_medium"
        defaults=(cable rope cable-nw alibi fire t5 t5-clip kerple learnable sinusoidal)
        ;;
    *) invalid "RUNG=$RUNG is unknown: use 1, 2, 3 or 4" ;;
esac
if [ "$RUNG" -lt 4 ] && [ "$SCALE" = full ]; then # on CPUs
    eval_tokens=131072 recall_flags="--trials 100"
    if [ "$RUNG" = 3 ]; then
        recall_flags="--trials 24" field_flags="--windows 32" hellaswag_flags="--max_examples 1000"
    fi
fi
if [[ ! ${LR:-1} =~ ^[0-9]*\.?[0-9]+(e-?[0-9]+)?$ ]]; then
    invalid "LR=$LR is invalid: use a number, as in LR=2e-3"
fi
scaled() { awk "BEGIN { print $1 * $2 }"; } # scaled NUMBER FACTOR: their product, as in 0.001
if [ -n "${LR:-}" ]; then LR=$(scaled "$LR" 1); fi # 1e-3 and 0.001 name one folder
out=$RUNS/$SCALE/ladder
rates=$out/learning_rates.txt # of rung 2
if [ "$RUNG" = 3 ] && [ -z "${LR:-}${DRY_RUN:-}" ] && [ ! -f "$rates" ]; then
    invalid "rung 3 needs $rates: copy results/ladder/learning_rates.txt there, or pass LR=1e-3"
fi
experiment ladder "${defaults[@]}"
prepare_data fineweb-edu

read -ra words <<<"$encodings"
while read -r pe lr; do rate[$pe]=$lr; done < <([ "$RUNG" = 4 ] || cat "$rates" 2>/dev/null)
if [ "$RUNG" = 2 ] && [ -z "${LR:-}" ]; then
    encodings=""
    for pe in "${words[@]}"; do
        if [ -n "${rate[$pe]:-}" ]; then continue; fi
        case $pe in rope | alibi) ;; *) pe=cable ;; esac # others have the rate of cable
        if [[ -z ${rate[$pe]:-} && " $encodings " != *" $pe "* ]]; then encodings+=" $pe"; fi
    done
    if [ -n "$encodings" ]; then
        tuning_flags=$(at_full_scale --steps 305 --warmup_steps 25)
        tune_learning_rates ladder_2 512 1e-3 2e-3 4e-3
        folder=$out/learning_rates
        run python -m reporting.scaling.training_logs "${runs[@]}" --out_dir "$folder" || true
        if [ -z "${DRY_RUN:-}" ]; then
            for pe in "${!rate[@]}"; do echo "$pe ${rate[$pe]}"; done | sort >"$rates"
        fi
    fi
elif [ "$RUNG" = 3 ]; then
    for pe in "${!rate[@]}"; do rate[$pe]=$(scaled "${rate[$pe]}" 256/512); done
fi

# evaluate_runs: evaluate the current runs.
evaluate_runs() {
    evaluate_perplexity $lengths
    [ "$RUNG" != 3 ] || EVAL_TOKENS=$((131072 / scale_divisor)) evaluate_perplexity $length,131072
    evaluate_recall $distances ${recall_flags:-}
    evaluate_receptive_field $length,$((4 * length)) ${field_flags:-}
    if [ "$RUNG" = 2 ]; then return; fi
    if [ "$SCALE" = smoke ]; then HELLASWAG=scripts/hellaswag_smoke.jsonl; fi
    evaluate_with eval_hellaswag.py ${HELLASWAG:+--source "$HELLASWAG"} ${hellaswag_flags:-}
}

# copy_records FOLDER: copy the current records to a folder, with the names of their runs.
copy_records() {
    local record run
    for record in "${records[@]}"; do
        mkdir -p "$1"
        run=$(basename "$(dirname "$record")")
        run cp "$record" "$1/${run//[:=]/_}-${record##*/}"
    done
}

trainings=() # "SEED ENCODING"
read -r first_seed _ <<<"$SEEDS"
for seed in $SEEDS; do
    for pe in "${words[@]}"; do
        case "$seed $pe" in
            "$first_seed "* | *" cable" | *" rope" | *" $candidate") trainings+=("$seed $pe") ;;
        esac
    done
done
for config in $configs; do
    results=$out/$config${LR:+-lr$LR}
    for ((first = 0; first < ${#trainings[@]}; first += JOBS)); do
        runs=() records=()
        for training in "${trainings[@]:first:JOBS}"; do
            read -r seed encodings <<<"$training"
            lr=${LR:-${rate[$encodings]:-${rate[cable]:-}}}
            SEEDS=$seed queue_trainings $config $length ${lr:+--lr "$(scaled "$lr" 1)"}
        done
        train_queued
        if [ ${#runs[@]}${DRY_RUN:-} = 0 ]; then continue; fi # all failed
        evaluate_runs
        copy_records "$results"
        run python -m reporting.scaling.training_logs "${runs[@]}" --out_dir "$results" || true
        records=("$results"/*-eval_*.json) # also those of earlier calls of this script
        report - "${results##*/}"
    done
done
committed=$(at_full_scale results/{reproduction,recall,receptive_field,ladder/rung_1}) # rung 1
run python report.py --trend $committed "$out" --out_dir "$out" || true
finish
