#!/usr/bin/env bash
# Run a program on a simulated H100, to find what would stop it on a real one.
#
#     bash tests/gpu_simulation/simulate_gpu.sh python bench.py train --model small --micro_batch 32
#     LAUNCHES=launches.txt bash tests/gpu_simulation/simulate_gpu.sh python train_gpt.py ...
#
# simulated_driver.c replaces the CUDA libraries. Every kernel is compiled for a GPU and launched,
# but nothing is computed: all results are zeros. Memory figures are those of PyTorch's allocator;
# times are those of the host. LAUNCHES names a file to which every kernel launch, matrix product,
# attention by cuDNN and copy is appended. CUDNN=8900 simulates a cuDNN without attention.
# Costs a few seconds on top of the program's compilation and writes nothing else.
# Needs gcc and a PyTorch for CUDA 13, which `pip install torch` installs on Linux; no driver.

set -euo pipefail
here=$(dirname "$0")
packages=$(python -c '
import pathlib, torch
print(pathlib.Path(torch.__file__).parents[1] if torch.version.cuda else "")')
if [ -z "$packages" ]; then
    echo "error: this PyTorch is not built for CUDA: install torch from PyPI" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# The headers include nv/target, which the packages lack and which only C++ needs.
mkdir "$folder/nv" && touch "$folder/nv/target"
gcc -w -shared -fPIC -O1 -Wl,-soname,libcuda.so.1 \
    -I"$folder" -I"$packages/nvidia/cu13/include" -I"$packages/nvidia/cudnn/include" \
    -I"$packages/triton/backends/nvidia/include" \
    -o "$folder/libcuda.so.1" "$here/simulated_driver.c"
ln -s libcuda.so.1 "$folder/libcuda.so"
TRITON_LIBCUDA_PATH=$folder TRITON_CACHE_DIR=$folder/triton \
    TORCHINDUCTOR_CACHE_DIR=$folder/inductor LD_LIBRARY_PATH=$folder \
    LD_PRELOAD=$folder/libcuda.so.1 "$@"
