"""Print the milliseconds of ten all-reduces of float32 numbers, as JSON.

torchrun --nproc_per_node 2 tests/gpu/all_reduce.py cuda 124439808
"""

import json
import sys
import time

import torch
import torch.distributed as dist

_, device, size = sys.argv
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())
numbers = torch.ones(int(size), device=device)
found = []
for _ in range(12):
    dist.barrier()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    dist.all_reduce(numbers)
    if device == "cuda":
        torch.cuda.synchronize()
    found.append(1000 * (time.perf_counter() - start))
assert (numbers == dist.get_world_size() ** 12).all()
if dist.get_rank() == 0:
    print(json.dumps(found[2:]))
dist.destroy_process_group()
