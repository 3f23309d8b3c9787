#!/usr/bin/env bash
# What only a GPU can show: are the kernels right there, and how fast is everything? Records go to results/bench/, by the hardware's
# name; where the kernels pass their tests, `--attention auto` takes them from then on for the encodings that they make faster.
#
#     bash scripts/test_gpu.sh

source "$(dirname "$0")/common.sh"
install requirements.txt requirements-dev.txt
python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "error: no GPU: take scripts/test.sh" >&2; exit 2; }
out=${OUT:-results/bench/$(python -c 'import torch; print(torch.cuda.get_device_name().split()[-1].lower())')}
pe=cable,cable-nw,fox,alibi
run timeout 150 python -m pytest -q tests/test_kernels.py && run python bench.py attention --context 1024,4096 --model small \
    --encodings $pe,k-cable,kerple,t5,t5-clip,fire --out "$out-attention.json" || true
run python bench.py train --encodings $pe --context 1024 --model small --micro_batch 32 --out "$out-train-small.json" || true
run python bench.py train --encodings $pe --context 1024 --model medium --micro_batch 16 --out "$out-train-medium.json" || true
run python prepare_text.py && run python train_gpt.py --config configs/quickstart.yaml --size tiny --pe cable --attention triton \
    --out_dir runs/test_gpu/cable --resume && run python bench.py attention --run runs/test_gpu/cable --context 4096,65536 --micro_batch 1 \
    --out "$out-attention-trained.json" || true # what the kernels leave out where the bias is as steep as training makes it
for record in "$out"-*.json; do run python report.py "$record" --out_dir "${record%.json}" || true; done
finish
