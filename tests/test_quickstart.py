"""scripts/quickstart.sh with a small model: killed, resumed, and run again when finished.

One of the two encodings is a plugin's.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from runtime import checkpoints

from conftest import ROOT, evaluation

FLAGS = (
    "--steps 8 --n_layer 1 --n_head 2 --n_embd 16 --val_tokens 1024 --checkpoint_every 2 "
    "--log_every 2 --lr 1e-2"
)
PLUGIN = """import posenc


class Near(posenc.Encoding):
    names = ("near",)

    def features(self, x, pos, previous=None):
        p = pos.float()[None, None]
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        return -(q_features[0] - k_features[0]).abs()
"""


def start(folder):
    """Start the script in a process group of its own, with data and runs in folder."""
    environment = {
        **os.environ,
        "OUT": str(folder / "runs"),
        "DATA": str(folder / "stdlib"),
        "EVAL_TOKENS": "8192",
        "ENCODINGS": "near cable",
        "PLUGIN": str(folder / "near.py"),
        "INSTALLED": "1",
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), *FLAGS.split()],
        env=environment,
        text=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process):
    """Wait for the script to succeed, and return its output."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def test_quickstart_resumes_and_skips_finished_steps(tmp_path):
    runs = tmp_path / "runs"
    (tmp_path / "near.py").write_text(PLUGIN)
    killed = start(tmp_path)
    while not checkpoints.list_checkpoints(runs / "cable"):
        assert killed.poll() is None, killed.stdout.read()
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    steps = checkpoints.load_checkpoint(runs / "cable")["step"]

    output = finish(start(tmp_path))
    assert f"from step {steps}" in output or steps == 8
    for line in (
        "| context |",
        "|   4,096 |",
        "- not judged, because trained for fewer than 50 steps: cable, near",
        "def read(self, path):",
    ):
        assert line in output, output
    written = {
        path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.name != "perplexity.md"
    }
    assert {"perplexity.png", "perplexity.csv"} <= {path.name for path in written}
    assert evaluation(runs / "cable", "stdlib_val")

    output = finish(start(tmp_path))
    assert output.count("is already trained") == 2
    assert output.count("already evaluated") == 2
    assert "is already prepared" in output
    files = [
        path
        for path in written
        if path.parent.name != "runs" and path.name != "output.txt" and path.is_file()
    ]
    assert len(files) == 11  # one is the copy of the plugin
    assert all(path.stat().st_mtime_ns == written[path] for path in files)
