"""Scripts: the first hour, experiments at a small scale and again, all tables, and Slurm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, evaluation, search_path, write_plugin, write_program
from test_run_experiment import SCRIPTS

import prepare_text

SEARCH_PATH = f"{sys.prefix}/bin:{os.environ['PATH']}"


def script(name, *words, **settings):
    command = ["bash", str(ROOT / "scripts" / name), *map(str, words)]
    environment = os.environ | {"PATH": SEARCH_PATH} | settings
    return subprocess.run(command, env=environment, text=True, capture_output=True)


def test_experiment_runs_end_to_end_and_resumes(tmp_path, data_dir):
    """One encoding fails: the table has the others, and the failure is listed with its log.

    A second run skips everything that is finished. The failing encoding is a plugin's.
    """
    code = "def __init__(self, *arguments): raise ValueError('mine')"
    broken = write_plugin(tmp_path / "broken.py", "broken", code)
    words = ["--scale", "smoke", "--data", data_dir, "--runs", tmp_path / "runs"]
    words += ["--plugin", broken, "--encodings", "kerple", "broken", "cable"]
    first = script("table2_dapev2.sh", *words, "--", "--verify_data", "always", PATH=search_path())
    runs = tmp_path / "runs" / "verify_dataalways" / "smoke"
    assert first.returncode == 1
    (line,) = [line for line in first.stderr.splitlines() if line.startswith("error: failed: ")]
    assert "--pe broken" in line
    assert "ValueError (mine)" in Path(line.rpartition("read ")[2]).read_text()
    table = (runs / "table2_dapev2" / "perplexity.md").read_text()
    assert "| context |" in table and table.index(" cable |") < table.index(" kerple |")
    assert "no: block_size, dataset, " in table  # not as in the paper's table 2
    assert (runs / "table2_dapev2" / "perplexity.csv").is_file()
    trained = {path.parent.name for path in runs.glob(f"{data_dir.name}-16/*/log.jsonl")}
    assert trained == {"kerple", "cable"}

    times = {path: path.stat().st_mtime_ns for path in runs.glob("*/*/*.pt")}
    second = script("table2_dapev2.sh", *words, "--", "--verify_data", "always", PATH=search_path())
    assert second.returncode == 1 and "| context |" in second.stdout
    assert second.stdout.count(", which an earlier call finished, ") == 4
    logs = "".join(path.read_text() for path in runs.rglob("*.txt"))
    assert "step 6/6" in logs  # of the first call
    assert logs.count("is already trained") == logs.count("already evaluated") == 2
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/*/*.pt")} == times


@pytest.mark.parametrize("name", ["all_tables", "half_hour", "table4", "figure4_8-15"])
def test_help_starts_nothing(name):
    done = script(f"{name}.sh", "--help", PATH=search_path())
    assert done.returncode == 0 and "--encodings" in done.stdout and not done.stderr
    assert "+ " not in done.stdout


def test_all_tables_runs_the_experiments_of_the_papers(tmp_path):
    """All but those with questions of ours, and one for released weights."""
    write_program(tmp_path / "python", "#!/bin/sh\nexit 0\n")
    done = script("all_tables.sh", "--dry_run", PATH=f"{tmp_path}:{SEARCH_PATH}")
    assert done.returncode == 0, done.stderr
    run = re.findall(r"^== scripts/(\S+).sh", done.stdout, re.MULTILINE)
    others = "authors_checkpoint half_hour quickstart recall reproduction rope_extended"
    assert {*SCRIPTS} - {*run} == {*others.split(), "trained_recall"}
    assert len(run) == len({*run})


@pytest.mark.skipif(sys.platform != "linux", reason="starts a server in the background")
def test_first_hour(tmp_path):
    kept = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
    done = subprocess.run(
        ["bash", "tests/first_hour.sh"],
        cwd=ROOT,
        env=kept | {"PATH": search_path(), "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.endswith("first hour: all commands printed what the documentation says\n")


FLAGS = (
    "--steps 8 --n_layer 1 --n_head 2 --n_embd 16 --val_tokens 1024 --checkpoint_every 2 "
    "--log_every 2 --lr 1e-2"
)


def test_quickstart_prints_table_and_sample(tmp_path):
    """With a small model; one of the two encodings is a plugin's."""
    text, data = tmp_path / "text.txt", tmp_path / "toy"
    text.write_text("".join(f"line {n} of {n * n}\n" for n in range(8000)))
    prepare_text.main([str(text), "--out_dir", str(data)])
    plugin = write_plugin(tmp_path / "near.py", "near")
    words = ["--runs", tmp_path, "--data", data, "--eval_tokens", "8192", "--encodings", "near"]
    words += ["cable", "--plugin", plugin, "--", *FLAGS.split()]
    done = script("quickstart.sh", *words, PATH=search_path())
    assert done.returncode == 0, done.stderr
    for line in ("| context |", "|   4,096 |", "def read(self, path):"):
        assert line in done.stdout
    (runs,) = tmp_path.glob("*/quickstart")
    assert {"perplexity.png", "perplexity.csv"} <= {path.name for path in runs.iterdir()}
    assert evaluation(runs / "cable")


def test_slurm_starts_torchrun_on_every_node(tmp_path):
    """With programs of Slurm that print their arguments; the first node is the rendezvous."""
    prints = 'echo "srun $@; timeout $TORCH_ELASTIC_SHUTDOWN_TIMEOUT"'
    write_program(tmp_path / "srun", f"#!/bin/sh\n{prints}\n")
    write_program(tmp_path / "scontrol", "#!/bin/sh\necho node7; sleep 0.2; echo node8\n")
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_ID": "5",
        "SLURM_CPUS_PER_TASK": "32",
    }
    flags = ["--pe", "cable", "--out_dir", "a b"]
    done = script("slurm.sh", *flags, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "srun --cpus-per-task=32 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d "
        "--rdzv_id=5 --rdzv_endpoint=node7:29500 train_gpt.py --pe cable --out_dir a b "
        "--resume; timeout 110\n"
    )
    done = script("slurm.sh", "scripts/table4.sh", "--seeds", "2", **settings)
    words = "srun --nodes=1 --ntasks=1 --cpus-per-task=32 bash scripts/table4.sh --seeds 2; "
    assert done.stdout == f"{words}timeout 110\n"
    del settings["SLURM_SUBMIT_DIR"]
    assert "use sbatch to start this script" in script("slurm.sh", *flags, **settings).stderr
