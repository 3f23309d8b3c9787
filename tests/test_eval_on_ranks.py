"""Evaluations under torchrun: two ranks write the record that one process writes."""

import json
import shutil
import subprocess

import pytest
import small_batches
from conftest import ROOT, search_path

EVALUATIONS = {
    "eval_extrapolation.py": ["--lengths", "16,64", "--stride", "8"],
    "eval_recall.py": ["--distances", "16,48", "--passage", "8", "--trials", "7"],
    "eval_receptive_field.py": ["--lengths", "16,48", "--windows", "5"],
    "eval_hellaswag.py": ["--source", str(ROOT / "scripts" / "hellaswag_smoke.jsonl")],
}
TORCHRUN = "python -m torch.distributed.run --standalone --nproc_per_node=2 --no-python python"


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("program", EVALUATIONS)
def test_two_ranks_write_the_record_of_one_process(
    program, trained, data_dir, tmp_path, monkeypatch
):
    """Batches are small, so that both ranks have some."""
    monkeypatch.chdir(ROOT)
    flags = EVALUATIONS[program]
    if program != "eval_hellaswag.py":
        flags = [*flags, "--data", str(data_dir)]
    runs = [tmp_path / name / "run" for name in ("one", "two")]
    for run in runs:
        shutil.copytree(trained("cable"), run)
    small_batches.run(program, [str(runs[0]), *flags], monkeypatch)
    monkeypatch.setenv("PATH", search_path())
    words = [str(ROOT / "tests" / "small_batches.py"), program, str(runs[1]), *flags]
    command = [*TORCHRUN.split(), *words]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record: ") == 1
    records = []
    for run in runs:
        (path,) = run.glob("eval_*.json")
        record = json.loads(path.read_text())
        records.append({key: record[key] for key in record.keys() - {"provenance", "folder"}})
    assert rounded(records[0]) == rounded(records[1])
    if program == "eval_recall.py":
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0 and done.stdout.count("is already evaluated") == 1
