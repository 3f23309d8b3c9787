#!/usr/bin/env bash
# Half an hour of one GPU: six encodings of GPT-2 tiny on 49M tokens of English, evaluated to 15,360.
#
#     python prepare_text.py train.jsonl.xz --tokenizer gpt2 --out_dir data/half_hour
#     bash scripts/half_hour.sh gpt2       # then llama, in another half hour
#
# The same command resumes: a call ends after LIMIT (570) seconds. Shards may be packed with xz to carry
# them (45 MiB). Cost of six trainings of 194M tokens: 15 minutes of one H100 at 40% MFU (computed).

source "$(dirname "$0")/activate.sh"
block=${1:?pass gpt2 or llama, as in: bash scripts/half_hour.sh gpt2}
if [ "$block" = --help ]; then exec python run_experiment.py --help; fi
if [ -d data/half_hour ]; then find data/half_hour -name '*.bin.xz' -exec xz --decompress {} +; fi
exec timeout --signal=INT "${LIMIT:-570}" python run_experiment.py --name half_hour_"$block" --data data/half_hour \
    --train half_hour_"$block" --train_flags "$(pick "" "--block $block")" \
    --encodings cable rope rope:heads_percent=75+alibi:heads_percent=75 alibi fox carope \
    --perplexity 512,1024,2048,4096,8192,15360 --recall 256,1024,4096,15360 "${@:2}"
