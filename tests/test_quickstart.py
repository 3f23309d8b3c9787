"""The quick start itself, at a few steps of a small model: killed on its way, started again, started once more."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import ROOT, evaluation

from runtime import checkpoints

FLAGS = [
    "--steps",
    "8",
    "--n_layer",
    "1",
    "--n_head",
    "2",
    "--n_embd",
    "16",
    "--val_tokens",
    "1024",
    "--checkpoint_every",
    "2",
    "--log_every",
    "2",
    "--lr",
    "1e-2",
]


def start(folder):
    environment = {
        **os.environ,
        "OUT": str(folder / "runs"),
        "DATA": str(folder / "stdlib"),
        "EVAL_TOKENS": "8192",
        "ENCODINGS": "cable alibi",
        "INSTALLED": "1",
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), *FLAGS],
        env=environment,
        text=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_quickstart(tmp_path):
    first = start(tmp_path)
    while not checkpoints.list_checkpoints(tmp_path / "runs" / "alibi"):
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    steps = checkpoints.load_checkpoint(tmp_path / "runs" / "alibi")["step"]

    again = start(tmp_path)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert "cable is already trained: 8 of 8 steps" in output
    assert f"from step {steps}" in output or steps == 8
    for line in (
        "| context |",
        "|   4,096 |",
        "cable: perplexity at 16x / perplexity at 1x <= 1.02 (CABLE)",
        "def read(self, path):",
    ):
        assert line in output, output
    written = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "runs").rglob("*")
        if path.name != "perplexity.md"
    }
    assert {"perplexity.png", "perplexity.csv"} <= {path.name for path in written} and evaluation(
        tmp_path / "runs" / "cable", "stdlib_val"
    )

    third = start(tmp_path)
    output, _ = third.communicate()
    assert third.returncode == 0, output
    assert (
        output.count("is already trained") == output.count("already evaluated") == 2
        and "is already prepared" in output
    )
    files = [path for path in written if path.parent.name != "runs" and path.is_file()]
    assert len(files) == 10 and all(path.stat().st_mtime_ns == written[path] for path in files)
