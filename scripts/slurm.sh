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
# Train on several nodes: one torchrun per node; the first node is the rendezvous. Flags go to
# train_gpt.py:
#
#     sbatch scripts/slurm.sh --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable
#
# --data and --out_dir must be on a file system that all nodes share. Two minutes before the time limit
# Slurm sends SIGTERM; the job saves a checkpoint after the current step and exits. Submitted again, or
# requeued, it resumes. Pass partition and account to sbatch, or add them here. PLUGIN are files with
# encodings of your own, separated by spaces.

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?use sbatch to start this script}"
if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -f .venv/bin/activate ]; then
    source .venv/bin/activate
fi

plugin_flags=()
for plugin in ${PLUGIN:-}; do plugin_flags+=(--plugin "$plugin"); done

# Seconds for the last checkpoint (torchrun's default is 30; PyTorch 2.11 ignores the variable).
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
# Where host names resolve to the loopback address, name the network between the nodes:
# export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
# Not piped to head: scontrol would fail when head closes the pipe, and so would this script.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
exec srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:?request GPUs}" \
    --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="${nodes%%$'\n'*}:29500" \
    train_gpt.py "$@" "${plugin_flags[@]}" --resume
