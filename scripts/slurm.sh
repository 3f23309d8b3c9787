#!/usr/bin/env bash
#SBATCH --job-name=gpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#
# One training on several nodes: `torchrun` once on each, all meeting at the first. Flags go to train_gpt.py:
#
#     sbatch scripts/slurm.sh --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable
#
# --data and --out_dir must lie on a file system that all nodes see. Two minutes before its time is up the job is sent SIGTERM,
# saves the step, and ends; submitted again (or requeued), it goes on, for it is always started with --resume. Partition,
# account and modules are your cluster's: give them to sbatch, or add them here.

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}"
if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then source .venv/bin/activate; fi

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110 # seconds for the last checkpoint; 30 by default, and always in PyTorch 2.11
# export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0 # where the nodes' names lead to themselves: the network between them
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") # no pipe to head: scontrol writing on would fail, and so end this
exec srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:?ask for GPUs}" --rdzv_backend=c10d \
    --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="${nodes%%$'\n'*}:29500" train_gpt.py "$@" --resume
