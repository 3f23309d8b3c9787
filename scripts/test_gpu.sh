#!/usr/bin/env bash
# What only a GPU can show: are the kernels right there, and how fast is everything? Records go to results/bench/, by the hardware's
# name; where the kernels pass their tests, `--attention auto` takes them from then on for the encodings that they make faster.
#
#     bash scripts/test_gpu.sh                  # all parts in LIMIT seconds (540), none in more than two fifths of them; compilation may
#                                               # take most of that, so that one part at a time shows more
#     bash scripts/test_gpu.sh train-medium     # some; each encoding that is done is on record, whatever comes after
#     RESULTS=folder/name bash scripts/test_gpu.sh    # records there (otherwise, where a test fails, in runs/: none must count then)
#     PYTHONPATH=forgetting-transformer/src:Cable/src bash scripts/test_gpu.sh    # others' code beside ours: peers.py says whose

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-dev.txt
gpu=$(python -c 'import torch; print("-".join(torch.cuda.get_device_name().lower().split()[1:]))' 2>/dev/null) || gpu=${DRY_RUN:+gpu}
if [ -z "$gpu" ]; then echo "error: no GPU: take scripts/test.sh" >&2 && exit 2; fi
limit=${LIMIT:-540} pe=cable,alibi,k-cable,t5,fire,kerple,fox,cable-nw,t5-clip out=${RESULTS:-results/bench/$gpu} trained=$RUNS/test_gpu/cable
within() { run timeout -k 10 -s INT $((SECONDS + share < limit ? share : SECONDS < limit ? limit - SECONDS : 1)) python "$@"; }
if python -c 'import Cable' 2>/dev/null; then pe+=,cable-v1; fi # CABLE's authors' code is there
speed() { within bench.py "$@" --out "$out-$part.json"; run python report.py "$out-$part.json" --out_dir "$out-$part"; }
right() { # no record without it
    [ -z "${tested:-}" ] || return 0
    tested=1
    local share=$((2 * limit / 5))
    within -m pytest -q -n 8 tests/triton_attention || { [ -n "${RESULTS:-}" ] || out=$RUNS/test_gpu/$gpu; }
}
if [ $# = 0 ]; then set -- attention train-small train-medium generate trained long encoders; fi
share=$(($# > 1 ? 2 * limit / 5 : limit))
for part; do case $part in
    attention) right; speed attention --model small --encodings $pe --micro_batch 16 ;;
    encoders) right; speed attention --model small --encodings $pe --objective mlm --context 512,4096 --micro_batch 8 ;;
    train-small) speed train --model small --micro_batch 32 --encodings $pe ;;
    train-medium) speed train --model medium --micro_batch 16 --encodings $pe ;;
    generate) speed generate --model small --encodings cable,alibi,fox,k-cable --compile true ;;
    long) speed attention --model small --encodings cable --context 2048,4096,8192,16384 --micro_batch 1 ;;
    trained) within prepare_text.py && within train_gpt.py --config configs/quickstart.yaml --size tiny --pe cable --attention triton \
        --out_dir "$trained" --resume && speed attention --run "$trained" --context 4096,65536 --micro_batch 1 ;;
    *) echo "error: no part '$part': choose from attention train-small train-medium generate trained long encoders" >&2 && exit 2 ;;
esac || true; done
finish
