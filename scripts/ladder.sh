#!/usr/bin/env bash
# Ladder of sizes: do the claims hold from 0.8M parameters to GPT-2 medium? (results/ladder/README.md)
#
#     bash scripts/ladder.sh 2 --data data/mine-bpe    # shards of your own; default: FineWeb-Edu
#
# rung  network               tokens             trained at   perplexity at
# 1     0.8M, 4 x 128         4.1M bytes         256          128 to 4,096 (reproduction.sh)
# 2     5.8M, 6 x 256         10M of bpe:4096    512          512 to 8,192
# 3     45M, GPT-2 tiny       4.2M of GPT-2's    1,024        512 to 15,360; a window of 131,072
# 4     GPT-2 small, medium   10B of GPT-2's     1,024        512 to 15,360 (runs of table4.sh and
#                                                             table1_fineweb.sh)
#
# Every training is evaluated when it ends, on rungs 3 and 4 on HellaSwag, too (--hellaswag FILE).
#
# Cost in minutes of one CPU core: rung 2: 18 trainings of 50 to 65 (kerple: 140), 18 evaluations of 25.
# Rung 3: three trainings of 130, three evaluations of 75. Rung 4 (computed): 20 trainings, 9.6 days of
# one H100.

source "$(dirname "$0")/activate.sh"
rung=${1:?pass the number of a rung, as in: bash scripts/ladder.sh 2}
best=rope:heads_percent=75+alibi:heads_percent=75
lengths=512,1024,2048,4096,8192,15360 distances=256,1024,4096,15360
case $rung in
    2) flags=(--train ladder_2 --block_size 512 --seeds 1 2 3 --eval_tokens 131072
        --encodings cable rope $best alibi rope+cable kerple --prepare_flags "--tokenizer bpe:4096 --shards 2"
        --perplexity 512,1024,2048,4096,8192 --recall "256,512,2048,8192 --trials 100" --receptive_field 512,2048) ;;
    3) flags=(--train ladder_3 --encodings cable rope $best --prepare_flags "--shards 2" --eval_tokens 131072
        --perplexity $lengths --recall "$distances --trials 24" --receptive_field "1024,4096 --windows 32"
        --hellaswag hub) ;;
    4) flags=(--train fineweb-edu_small fineweb-edu_medium --perplexity $lengths --recall $distances
        --receptive_field 1024,4096 --hellaswag hub
        --encodings cable rope cable-nw alibi fire t5 t5-clip kerple learnable sinusoidal) ;;
    --help) exec python run_experiment.py --help ;;
    *) echo "error: there is no rung $rung: use 2, 3 or 4" >&2 && exit 2 ;;
esac
exec python run_experiment.py --name ladder/rung_$rung --data fineweb-edu "${flags[@]}" --commands \
    "report.py --trend results/reproduction $(echo results/ladder/*/) {runs} --out_dir {out}" "${@:2}"
