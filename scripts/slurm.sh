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
# Train on several nodes, one torchrun per node, or run a script on one:
#
#     sbatch scripts/slurm.sh --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable
#     sbatch --nodes=1 scripts/slurm.sh scripts/table1_fineweb.sh --seeds 1 2 3
#
# --data and --out_dir must be on a file system that all nodes share. Two minutes before the time limit
# Slurm sends SIGTERM; the job saves a checkpoint after the current step and exits. Submitted again, or
# requeued, it resumes. Pass partition and account to sbatch, or add them here.

cd "${SLURM_SUBMIT_DIR:?use sbatch to start this script}"
source scripts/activate.sh

# Seconds for the last checkpoint (torchrun's default is 30; PyTorch 2.11 ignores the variable).
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110
if [[ "${1:-}" = *.sh ]]; then
    exec srun --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash "$@"
fi
# If host names resolve to the loopback address: export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
# Not piped to head: scontrol would fail when head closes the pipe, and so would this script.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
exec srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="${SLURM_GPUS_ON_NODE:?request GPUs}" \
    --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" --rdzv_endpoint="${nodes%%$'\n'*}:29500" \
    train_gpt.py "$@" --resume
