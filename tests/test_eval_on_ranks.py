"""Evaluations under torchrun: two ranks write the record that one process writes."""

import json
import shutil
import subprocess

import pytest
from conftest import ROOT, search_path

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
    again = ["two"] if program == "eval_recall.py" else []
    for name in ("one", "two", *again):
        run = tmp_path / name / "run"
        if not run.exists():
            shutil.copytree(trained("cable"), run)
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
    assert not again or outputs[2].count("is already evaluated") == 1
