"""Tests of scripts/slurm.sh, with fake Slurm programs that print their arguments."""

import os
import subprocess

from conftest import ROOT


def test_torchrun_starts_on_every_node_with_the_first_as_rendezvous(tmp_path):
    for name, prints in (
        ("srun", 'echo "srun $@; timeout $TORCH_ELASTIC_SHUTDOWN_TIMEOUT"'),
        ("scontrol", "echo node7; sleep 0.2; echo node8"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{prints}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "VIRTUAL_ENV": "here",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_ID": "5",
        "SLURM_CPUS_PER_TASK": "32",
    }
    command = ["bash", str(ROOT / "scripts" / "slurm.sh"), "--pe", "cable", "--out_dir", "a b"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "srun --cpus-per-task=32 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d "
        "--rdzv_id=5 --rdzv_endpoint=node7:29500 train_gpt.py --pe cable --out_dir a b "
        "--resume; timeout 110\n"
    )
    script = ["bash", str(ROOT / "scripts" / "slurm.sh"), "scripts/table4.sh", "--seeds", "2"]
    done = subprocess.run(script, env=environment, text=True, capture_output=True)
    words = "srun --nodes=1 --ntasks=1 --cpus-per-task=32 bash scripts/table4.sh --seeds 2; "
    assert done.stdout == f"{words}timeout 110\n"
    del environment["SLURM_SUBMIT_DIR"]
    assert (
        "use sbatch to start this script"
        in subprocess.run(command, env=environment, text=True, capture_output=True).stderr
    )
