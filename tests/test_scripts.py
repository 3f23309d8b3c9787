"""Experiment scripts: one run end to end at a small scale, and the script that runs all."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, search_path

SEARCH_PATH = f"{sys.prefix}/bin:{os.environ['PATH']}"
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "scripts").glob("*.sh")
    if "python run_experiment.py" in path.read_text()
)


def script(name, *words, **settings):
    environment = {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "INSTALLED": "1",
        "PATH": SEARCH_PATH,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / name), *map(str, words)],
        env=environment | settings,
        text=True,
        capture_output=True,
    )


def test_experiment_runs_end_to_end_and_resumes(tmp_path, data_dir):
    """One encoding fails: the table has the others, and the failure is listed with its log.

    A second run skips everything that is finished. The failing encoding is a plugin's.
    """
    broken = tmp_path / "broken.py"
    broken.write_text(
        'import posenc\n\n\nclass Broken(posenc.Encoding):\n    names = ("broken",)\n\n'
        '    def __init__(self, heads, channels, block_size):\n        raise ValueError("mine")\n'
    )
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
    assert "here and in CABLE, table 2" in table
    assert "same order of encodings" not in table  # smoke runs print no verdicts
    assert (runs / "table2_dapev2" / "perplexity.tex").is_file()
    trained = {path.parent.name for path in runs.glob(f"{data_dir.name}-16/*/log.jsonl")}
    assert trained == {"kerple", "cable"}

    times = {path: path.stat().st_mtime_ns for path in runs.glob("*/*/*.pt")}
    second = script("table2_dapev2.sh", *words, "--", "--verify_data", "always", PATH=search_path())
    assert second.returncode == 1 and "| context |" in second.stdout
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/*/*.pt")} == times


def test_help_lists_the_flags():
    done = script("table4.sh", "--help")
    assert done.returncode == 0 and "--encodings" in done.stdout and not done.stderr
    words = " ".join(done.stdout.split())
    for default in ("table4", "512,1024,2048,4096,8192,15360"):  # those of the script
        assert f"default: {default})" in words


def test_all_tables_runs_the_experiments_of_the_papers(tmp_path):
    """All but those with questions of ours, and one for released weights."""
    (tmp_path / "python").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "python").chmod(0o755)
    done = script("all_tables.sh", "--dry_run", PATH=f"{tmp_path}:{SEARCH_PATH}")
    assert done.returncode == 0, done.stderr
    run = re.findall(r"^== scripts/(\S+).sh", done.stdout, re.MULTILINE)
    others = {"ladder", "recall", "rope_extended", "quickstart", "trained_recall", "score"}
    assert {*SCRIPTS} - {*run} == others | {"authors_checkpoint"} and len(run) == len({*run})
