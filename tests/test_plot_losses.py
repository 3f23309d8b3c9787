"""Plots of losses: content and errors."""

import json
import re
import shutil

import pytest
from conftest import log_of

import plot
import report

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


def test_the_record_of_a_training_has_its_logged_losses(trained, tmp_path, capsys):
    run, out = str(trained("alibi")), ("--out", str(tmp_path / "a.png"))
    plot.main(["losses", run, *out])
    assert f"record: {tmp_path / 'a.json'}" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "a.json").read_text())["runs"]
    names = ("run", "pe", "objective", "seed", "step")
    assert [found[name] for name in names] == ["alibi", "alibi", "clm", 1, 6]
    logged = [entry for entry in log_of(run) if entry["kind"] == "train"]
    assert found["losses"] == [[entry["step"], entry["loss"]] for entry in logged]


def test_other_runs_are_plotted_without_a_record(trained, finetuned, tmp_path, capsys):
    """Of another length, fine-tuned, or the same run twice."""
    run, other = str(trained("alibi")), shutil.copytree(trained("alibi"), tmp_path / "other")
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("block_size: 16", "block_size: 32"))
    more, twice = "the runs differ in more than encoding and seed", "two runs have the same"
    for second, reason in ((other, more), (finetuned([[1, 3.0]]), more), (run, twice)):
        plot.main(["losses", run, str(second), "--out", str(tmp_path / "a.png")])
        assert f"no record: {reason}" in capsys.readouterr().out
    assert (tmp_path / "a.png").exists() and not (tmp_path / "a.json").exists()


def test_losses_of_fine_tuning_make_a_report(finetuned, tmp_path, refused):
    """The mean of ten losses from 2.9 to 2.0."""
    tuned = finetuned([[step, 3.0 - step / 100] for step in range(10, 101, 10)])
    out = ("--out", str(tmp_path / "a.png"))
    plot.main(["losses", str(tuned), *out])
    report.main([str(tmp_path / "a.json"), "--out_dir", str(tmp_path / "out")])
    assert "|     2.450 |" in (tmp_path / "out" / "losses.md").read_text()
    (tuned / "finetune.json").write_text(json.dumps(FINETUNING))
    assert "has no training losses: remove it" in refused(plot.main, "losses", tuned, *out)[0]


def test_a_log_with_nan_is_named(trained, refused, tmp_path):
    run = shutil.copytree(trained("alibi"), tmp_path / "alibi")
    with open(run / "log.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 7, "loss": NaN}\n')
    (line,) = refused(plot.main, "losses", run, "--out", tmp_path / "a.png")
    assert re.search("log.jsonl: expected float .* at .*loss: train again, or remove the", line)
    assert not (tmp_path / "a.png").exists()
