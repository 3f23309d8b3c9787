"""Plots of losses: content and errors."""

import json
import re
import shutil

import pytest
from conftest import log_of

import plot
from reporting import figures

FINETUNING = {"settings": {"seed": 1}, "sha256": {"data": None}}  # without losses yet


@pytest.fixture
def finetuned(tmp_path):
    """finetuned(losses): the folder of a fine-tuned run, {"losses": [[step, loss]]}."""

    def make(losses):
        (tmp_path / "tuned").mkdir()
        record = json.dumps(FINETUNING | {"losses": losses})
        (tmp_path / "tuned" / "finetune.json").write_text(record)
        (tmp_path / "tuned" / "config.json").write_text('{"pe": "cable"}')
        return tmp_path / "tuned"

    return make


@pytest.mark.parametrize(
    "seeds, labels",
    [((1, 2), ["alibi, seed 1", "alibi, seed 2"]), ((1, 1), ["alibi, run a", "alibi, run b"])],
)
def test_labels_name_the_encoding(seeds, labels):
    runs = [{"run": name, "pe": "alibi", "seed": n} for name, n in zip("ab", seeds, strict=True)]
    runs.append({"run": "c", "pe": "rope", "seed": 1})
    assert [plot.label_of(run, runs) for run in runs] == [*labels, "rope"]


def test_points_are_the_logged_losses(trained, finetuned, tmp_path, monkeypatch, refused):
    """Of a training, and of a fine-tuned run."""
    drawn, draw_lines = {}, figures.draw_lines

    def note(file, title, panels, *others, **options):
        drawn.update({line.label: line.points for line in panels[0][1]}, title=title)
        draw_lines(file, title, panels, *others, **options)

    monkeypatch.setattr(figures, "draw_lines", note)
    run, tuned = trained("alibi"), finetuned([[1, 3.0], [2, 2.5]])
    out = ("--out", str(tmp_path / "a.png"))
    plot.main(["losses", str(run), str(tuned), *out])
    logged = [entry for entry in log_of(run) if entry["kind"] == "train"]
    assert drawn["alibi"] == [(entry["step"], entry["loss"]) for entry in logged]
    assert drawn["cable"] == [[1, 3.0], [2, 2.5]]
    assert "custom model on toy, trained at 16 tokens; fine-tuning" in drawn["title"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (tuned / "finetune.json").write_text(json.dumps(FINETUNING))
    assert "has no training losses: remove it" in refused(plot.main, "losses", tuned, *out)[0]


def test_a_log_with_nan_is_named(trained, refused, tmp_path):
    run = shutil.copytree(trained("alibi"), tmp_path / "alibi")
    with open(run / "log.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 7, "loss": NaN}\n')
    (line,) = refused(plot.main, "losses", run, "--out", tmp_path / "a.png")
    assert re.search("log.jsonl: expected float .* at .*loss: train again, or remove the", line)
    assert not (tmp_path / "a.png").exists()
