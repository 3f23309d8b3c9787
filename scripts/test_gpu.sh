#!/usr/bin/env bash
# Test the Triton kernels on a GPU and measure all speeds there.
#
#     bash scripts/test_gpu.sh                  # all parts
#     bash scripts/test_gpu.sh train-medium     # some parts; compilation may take most of a part's time
#
# Cost: at most LIMIT seconds (540), and at most two fifths of them per command unless only one part
# is named. Results of an encoding are written as soon as it is done.
# Writes: results/bench/GPU-PART.json and its tables in results/bench/GPU-PART/. If a test fails,
# they go to $RUNS/test_gpu/ instead. RESULTS=folder/name sets another place.
# PYTHONPATH=forgetting-transformer/src:Cable/src also measures other authors' code; see
# benchmarking/baselines.py.

own_settings="LIMIT RESULTS" arguments=parts
source "$(dirname "$0")/common.sh"
install_requirements requirements.txt requirements-dev.txt
gpu=$(python -c '
import torch
print("-".join(torch.cuda.get_device_name().lower().split()[1:]))' 2>/dev/null) || gpu=${DRY_RUN:+gpu}
if [ -z "$gpu" ]; then
    echo "error: no GPU: use scripts/test.sh" >&2
    exit 2
fi
limit=${LIMIT:-540}
out=${RESULTS:-results/bench/$gpu}
trained=$RUNS/test_gpu/cable
pe=cable,alibi,k-cable,t5,fire,kerple,fox,cable-nw,t5-clip
if python -c 'import Cable' 2>/dev/null; then pe+=,cable-v1; fi # the CABLE authors' code

# within ARGUMENT...: run Python for at most $share seconds, and not past the limit.
within() {
    local seconds=$share
    if ((SECONDS >= limit)); then
        seconds=1
    elif ((SECONDS + share >= limit)); then
        seconds=$((limit - SECONDS))
    fi
    run timeout -k 10 -s INT "$seconds" python "$@"
}

# measure ARGUMENT...: run bench.py and make its tables.
measure() {
    within bench.py "$@" --out "$out-$part.json"
    run python report.py "$out-$part.json" --out_dir "$out-$part"
}

# test_kernels: once, before the first measurement of attention.
test_kernels() {
    if [ -n "${tested:-}" ]; then return; fi
    tested=1
    local share=$((2 * limit / 5))
    if ! within -m pytest -q -n 8 tests/triton_attention && [ -z "${RESULTS:-}" ]; then
        out=$RUNS/test_gpu/$gpu
    fi
}

# run_part PART
run_part() {
    case $1 in
        attention)
            test_kernels
            measure attention --model small --encodings $pe --micro_batch 16
            ;;
        encoders)
            test_kernels
            measure attention --model small --encodings $pe --objective mlm --context 512,4096 \
                --micro_batch 8
            ;;
        train-small) measure train --model small --micro_batch 32 --encodings $pe ;;
        train-medium) measure train --model medium --micro_batch 16 --encodings $pe ;;
        generate)
            measure generate --model small --encodings cable,alibi,fox,k-cable --compile true
            ;;
        long)
            measure attention --model small --encodings cable --context 2048,4096,8192,16384 \
                --micro_batch 1
            ;;
        trained)
            within prepare_text.py &&
                within train_gpt.py --config configs/quickstart.yaml --size tiny --pe cable \
                    --attention triton --out_dir "$trained" --resume &&
                measure attention --run "$trained" --context 4096,65536 --micro_batch 1
            ;;
    esac
}

parts=(attention train-small train-medium generate trained long encoders)
if [ $# = 0 ]; then set -- "${parts[@]}"; fi
for part; do
    if [[ " ${parts[*]} " != *" $part "* ]]; then
        echo "error: no part '$part': use ${parts[*]}" >&2
        exit 2
    fi
done
share=$(($# > 1 ? 2 * limit / 5 : limit))
for part; do run_part "$part" || true; done
finish
