"""scripts/quickstart.sh with a small model, twice; one of the two encodings is a plugin's."""

from conftest import evaluation
from test_scripts import script

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


def test_quickstart_prepares_trains_and_skips_finished_steps(tmp_path):
    runs = tmp_path / "runs"
    (tmp_path / "near.py").write_text(PLUGIN)
    settings = {"OUT": str(runs), "DATA": str(tmp_path / "stdlib"), "EVAL_TOKENS": "8192"}
    settings |= {"ENCODINGS": "near cable", "PLUGIN": str(tmp_path / "near.py")}
    done = script("quickstart.sh", tmp_path, *FLAGS.split(), **settings)
    assert done.returncode == 0, done.stderr
    for line in (
        "| context |",
        "|   4,096 |",
        "- not judged, because trained for fewer than 50 steps: cable, near",
        "def read(self, path):",
    ):
        assert line in done.stdout
    written = {path: path.stat().st_mtime_ns for path in runs.glob("*/*") if path.is_file()}
    assert {"perplexity.png", "perplexity.csv"} <= {path.name for path in runs.iterdir()}
    assert evaluation(runs / "cable", "stdlib_val")

    done = script("quickstart.sh", tmp_path, *FLAGS.split(), **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is already trained") == 2
    assert done.stdout.count("already evaluated") == 2
    assert "is already prepared" in done.stdout
    files = [path for path in written if path.name != "output.txt"]
    assert len(files) == 11  # one is the copy of the plugin
    assert all(path.stat().st_mtime_ns == written[path] for path in files)
