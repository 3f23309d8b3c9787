"""Each case of the fault tests once, and the record of the long run."""

import json
import os
import pickle
import random
import subprocess
import sys

import pytest
from conftest import ROOT

from . import __main__ as runner
from . import corruption, harness, security

RECORD = ROOT / "results" / "reliability" / "faults.json"
SEED = 1


@pytest.mark.parametrize("kinds", ["kills,signals,disk,concurrency", "corruption,fuzz,security"])
def test_nothing_is_lost(kinds, tmp_path):
    """Each case once, in a new process: one that has computed gradients cannot be forked."""
    command = [sys.executable, "-m", "faults", "--seed", str(SEED), "--only", kinds]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    done = subprocess.run(
        [*command, "--rounds", "1"], cwd=ROOT, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_numbers_depend_on_seed_kind_and_number_only():
    """So that --trial repeats one trial."""
    drawn = []

    def case(workspace, rng):
        """draws a number."""
        drawn.append(rng.random())

    class Workspace:
        def new_trial(self): ...
        def check_outside(self): ...

    for number in (3, 4, 3):
        assert runner.run_trial(Workspace(), case, "disk", 7, number) is None
    assert drawn[0] == drawn[2] != drawn[1]


def test_every_way_to_corrupt_a_file_changes_it(tmp_path):
    path, rng = tmp_path / "file", random.Random(SEED)
    for way in corruption.CORRUPTIONS:
        for content in (bytes(100) + b"1", b"0123456789" * 1000):
            path.write_bytes(content)
            corruption.corrupt(path, rng, way)
            assert path.read_bytes() != content


def test_every_malicious_pickle_runs_code_if_it_is_trusted(tmp_path):
    rng = random.Random(SEED)
    for _ in range(30):
        content = pickle.dumps(security.Evil(rng, tmp_path))
        pickle.loads(content)
        (left,) = tmp_path.iterdir()
        left.rmdir() if left.is_dir() else left.unlink()


def test_traceback_missing_error_line_and_status_are_lost():
    check, result = harness.check, harness.Result
    assert check(result(2, "error: no data: prepare it\n")).status == 2
    traceback = "Traceback (most recent call last)\nerror: x: y\n"
    for status, output in ((1, ""), (None, ""), (2, ""), (0, traceback), (-7, "")):
        with pytest.raises(harness.Lost):
            check(result(status, output))


def test_table_of_the_record_is_current():
    record = json.loads(RECORD.read_text())
    assert RECORD.with_suffix(".md").read_text() == runner.markdown(record)


def test_record_has_at_least_1000_faults_and_nothing_is_lost():
    entries = json.loads(RECORD.read_text())["faults"]
    assert sum(entry["tried"] for entry in entries) >= 1000
    assert {entry["kind"] for entry in entries} == set(runner.KINDS)
    assert all(entry["lost"] == [] for entry in entries)
