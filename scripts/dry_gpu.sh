#!/usr/bin/env bash
# Runs a program on an H100 that is not there, to find what would stop it on one that is: dry_gpu.c stands in for CUDA. Everything is
# compiled as for a GPU and launched; nothing is computed, so all numbers are zeros. Memory is what PyTorch's allocator hands out, times are
# those that the host takes. Needs gcc, no NVIDIA driver, and a PyTorch for CUDA 13, which on Linux `pip install torch` brings.
#
#     bash scripts/dry_gpu.sh python bench.py train --model small --micro_batch 32       # the column memory
#     LAUNCHES=launches.txt bash scripts/dry_gpu.sh python train_gpt.py ...              # every kernel, matrix product and copy

set -euo pipefail
packages=$(python -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1] if torch.version.cuda else "")')
if [ -z "$packages" ]; then echo "error: this PyTorch is not for CUDA: pip install torch, from PyPI" >&2 && exit 2; fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir "$folder/nv" && touch "$folder/nv/target" # a header for C++ alone, which the packages leave out
gcc -w -shared -fPIC -O1 -Wl,-soname,libcuda.so.1 \
    -I"$folder" -I"$packages/nvidia/cu13/include" -I"$packages/triton/backends/nvidia/include" \
    -o "$folder/libcuda.so.1" "$(dirname "$0")/dry_gpu.c"
ln -s libcuda.so.1 "$folder/libcuda.so"
TRITON_LIBCUDA_PATH=$folder TRITON_CACHE_DIR=$folder/triton TORCHINDUCTOR_CACHE_DIR=$folder/inductor LD_LIBRARY_PATH=$folder \
    LD_PRELOAD=$folder/libcuda.so.1 "$@"
