"""scripts/quickstart.sh with a small model, twice; one of the two encodings is a plugin's."""

from conftest import evaluation, search_path
from test_scripts import script

import prepare_text

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
    data = tmp_path / "stdlib"
    prepare_text.main(["--out_dir", str(data)])
    (tmp_path / "near.py").write_text(PLUGIN)
    words = ["--runs", tmp_path, "--data", data, "--eval_tokens", "8192", "--encodings", "near"]
    words += ["cable", "--plugin", tmp_path / "near.py", "--", *FLAGS.split()]
    done = script("quickstart.sh", *words, PATH=search_path())
    assert done.returncode == 0, done.stderr
    for line in (
        "| context |",
        "|   4,096 |",
        "- not judged, because trained for fewer than 50 steps: cable, near",
        "def read(self, path):",
    ):
        assert line in done.stdout
    (runs,) = tmp_path.glob("*/quickstart")
    written = {path: path.stat().st_mtime_ns for path in runs.glob("*/*.*") if path.is_file()}
    assert {"perplexity.png", "perplexity.csv"} <= {path.name for path in runs.iterdir()}
    assert evaluation(runs / "cable", "stdlib_val")

    done = script("quickstart.sh", *words, PATH=search_path())
    assert done.returncode == 0, done.stderr
    logs = [path for path in written if path.suffix == ".txt"]
    texts = "".join(path.read_text() for path in logs)
    assert texts.count("is already trained") == 2 and texts.count("already evaluated") == 2
    kept = written.keys() - {*logs}
    assert len(kept) > 8 and all(path.stat().st_mtime_ns == written[path] for path in kept)
