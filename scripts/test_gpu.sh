#!/usr/bin/env bash
# Test the trainings and the Triton kernels on a GPU, and measure speed and memory there.
#
#     bash scripts/test_gpu.sh                          # all parts, the decisive ones first
#     bash scripts/test_gpu.sh LIMIT=900 recipes speed  # some parts
#     bash scripts/test_gpu.sh DEVICE=cpu LIMIT=900     # all parts at tiny sizes, without a GPU
#
# Cost: at most LIMIT seconds (1800). A part that fails or is too slow does not stop the next one.
# Needs no package index: missing packages come from wheels/, if it exists (docs/performance.md).
# Writes to OUT (runs/test_gpu), as results come: records.jsonl, records of bench.py, what each part
# printed (PART.txt) and summary.txt. Exit status 1 if a part did not pass.

set -uo pipefail && cd "$(dirname "$0")/.." || exit
DEVICE=${DEVICE:-cuda} LIMIT=${LIMIT:-1800} OUT=${OUT:-runs/test_gpu}
while [[ ${1:-} =~ ^(DEVICE|LIMIT|OUT)=.+ ]]; do
    declare "$1"
    shift
done
all="recipes speed kernels repeats memory several_gpus"
wanted=" ${*:-$all} "

invalid() {
    echo "error: $1" >&2
    exit 2
}
[[ $DEVICE =~ ^(cuda|cpu)$ ]] || invalid "DEVICE=$DEVICE is unknown: use cuda or cpu"
[[ $LIMIT =~ ^[1-9][0-9]{0,5}$ ]] || invalid "LIMIT=$LIMIT is invalid: use a number of seconds"
for word in $wanted; do
    [[ " $all " == *" $word "* ]] || invalid "no part '$word': use $all"
done
missing=$(python3 -c 'import runtime' 2>&1 | sed -n 's/^error: missing packages \(.*\): pip .*/\1/p')
if [ -n "$missing" ] && [ -d wheels ]; then
    python3 -m pip install --quiet --no-index --find-links wheels \
        --target wheels/installed ${missing//,/}
    export PYTHONPATH=$PWD/wheels/installed${PYTHONPATH:+:$PYTHONPATH}
fi
python3 -c 'import runtime' || exit 2
if [ "$DEVICE" = cpu ]; then
    export CUDA_VISIBLE_DEVICES= TRITON_INTERPRET=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
elif ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    invalid "PyTorch finds no GPU: use DEVICE=cpu, or scripts/test.sh"
fi
export DEVICE LIMIT OUT PYTHONUNBUFFERED=1
mkdir -p "$OUT" && : >"$OUT/summary.txt"
python3 -m torch.utils.collect_env >"$OUT/environment.txt" 2>&1

# part NAME SECONDS COMMAND...: run a command, at most so long, and add a line to the summary.
part() {
    local name=$1 budget=$2 start=$SECONDS status="not started"
    [[ $wanted == *" ${name%%-*} "* ]] || return
    if ((budget > LIMIT - SECONDS)); then budget=$((LIMIT - SECONDS)); fi
    : >"$OUT/$name.txt"
    if ((budget > 0)); then
        timeout --signal=INT --kill-after=20 "$budget" "${@:3}" >"$OUT/$name.txt" 2>&1
        case $? in 0) status=passed ;; 124 | 137) status="out of time" ;; *) status=FAILED ;; esac
    fi
    echo "$name: $status, $((SECONDS - start)) s: $(grep . "$OUT/$name.txt" | tail -n 1)" |
        tee -a "$OUT/summary.txt"
}
tests() { part "$1" "$2" python3 -m pytest -v -rs -p no:cacheprovider -m gpu "${@:3}"; }
bench() { part "$1" "$2" python3 bench.py "${@:3}" --device "$DEVICE" --out "$OUT/$1.json"; }
kernels=(kernel_formulas tile_skipping kernel_models kernel_interface flex)
long=(--model medium --context 131072 --micro_batch 1) short=(--model small --micro_batch 32 --steps 2 --micro_batches 16)
if [ "$DEVICE" = cpu ]; then
    kernels=(kernel_interface)
    long=(--model quickstart --context 512 --micro_batch 1 --repeats 1)
    short=(--model quickstart --context 64 --repeats 2 --micro_batches 2)
fi

tests recipes 600 tests/gpu/test_recipes.py
bench speed 300 train --encodings cable,fox,alibi "${short[@]}"
# A process for each file: a faulty kernel can make the GPU unusable for its process.
for name in "${kernels[@]}"; do
    tests "kernels-${name#kernel_}" 420 "tests/triton_attention/test_$name.py" &
done
wait
tests repeats 120 tests/gpu/test_repeats.py
bench memory 120 eval --encodings cable "${long[@]}"
tests several_gpus 400 tests/gpu/test_several_gpus.py
! grep -v ': passed' "$OUT/summary.txt" >&2
