"""Evaluations under torchrun: two ranks write the record that one process writes."""

import json
import shutil
import subprocess

from runtime import distributed

import pytest
import torch
from conftest import ROOT, search_path

from errors import InputError
from evaluation import runner
from training import checkpoints

EVALUATIONS = {
    "eval_extrapolation.py": ["--lengths", "16,64", "--stride", "16", "--max_tokens", "1024"],
    "eval_recall.py": ["--distances", "16,48", "--passage", "8", "--trials", "7"],
    "eval_receptive_field.py": ["--lengths", "16,48", "--windows", "5"],
    "eval_hellaswag.py": ["--source", str(ROOT / "scripts" / "hellaswag_smoke.jsonl")],
}
# Batches are small, so that both ranks have some.
SMALL_BATCHES = """
import importlib, sys
from runtime import cli
from evaluation import runner
program = importlib.import_module(sys.argv[1].removesuffix(".py"))
runner.BATCH_TOKENS = 96
cli.run(lambda: program.main(sys.argv[2:]))
"""
TORCHRUN = "python -m torch.distributed.run --standalone --nproc_per_node=2 --no-python"


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("program", EVALUATIONS)
def test_two_ranks_write_the_record_of_one(program, trained, data_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", search_path())
    flags = EVALUATIONS[program]
    if program != "eval_hellaswag.py":
        flags = [*flags, "--data", str(data_dir)]
    records, outputs = [], []
    for name in ("one", "two"):
        run = shutil.copytree(trained("cable"), tmp_path / name / "run")
        launcher = TORCHRUN.split() if name == "two" else []
        command = [*launcher, "python", "-c", SMALL_BATCHES, program, str(run), *flags]
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
        (path,) = run.glob("eval_*.json")
        record = json.loads(path.read_text())
        records.append({key: record[key] for key in record.keys() - {"provenance", "folder"}})
    assert rounded(records[0]) == rounded(records[1])
    assert outputs[1].count("record: ") == 1


def test_ranks_evaluate_the_checkpoint_that_the_first_one_chose(trained, tmp_path, monkeypatch):
    """As while a training writes another one; other weights under its name are refused."""
    run = shutil.copytree(trained("cable"), tmp_path / "run")
    chosen = shutil.copytree(trained("alibi"), tmp_path / "chosen") / "checkpoint_0000006.pt"
    config = runner.EvaluationConfig(runs=[str(run)])
    first = {}

    def gather(value):  # of the first rank, and of this one
        return [str(chosen) if "/" in value else first.get("sha256", value), value]

    processes = distributed.Processes(rank=1, world_size=2)
    monkeypatch.setattr(processes, "gather", gather)
    ranks = processes, torch.device("cpu"), torch.float32
    assert runner.load_run(str(run), config, ranks).model.config.pe == "alibi"
    first["sha256"] = "0" * 64
    with pytest.raises(InputError, match="ranks have read different weights"):
        runner.load_run(str(run), config, ranks)


def test_paths_that_are_no_runs_are_left_out(trained, tmp_path, capsys):
    """As of runs/quickstart/*; alone they are errors."""
    run = str(trained("cable"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "table.md").touch()
    others = [str(tmp_path / "logs"), str(tmp_path / "table.md")]
    assert checkpoints.runs_among([others[0], run, others[1]]) == [run]
    assert " ".join(others) in capsys.readouterr().out
    assert checkpoints.runs_among(others) == others
    missing = str(tmp_path / "missing")
    assert checkpoints.runs_among([run, missing]) == [run, missing]
