"""Plots of losses: content and errors."""

import json
import re
import shutil

import pytest
from conftest import log_of

import plot
import report
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


def test_losses_are_read_from_the_logs(trained, finetuned, tmp_path, monkeypatch, refused):
    plotted = {}
    monkeypatch.setattr(
        figures,
        "draw_panel",
        lambda axes, lines, *_: plotted.update({line.label: line.points for line in lines}),
    )
    tuned = finetuned([[1, 3.0], [2, 2.5], [3, 2.25]])
    out = ("--out", str(tmp_path / "a.png"))
    plot.main(["losses", str(trained("alibi")), str(tuned), *out])
    assert len(plotted["alibi"]) == 3 and plotted["cable"] == [[1, 3.0], [2, 2.5], [3, 2.25]]
    assert not (tmp_path / "a.json").exists()  # pretraining and fine-tuning are not comparable
    (tuned / "finetune.json").write_text(json.dumps(FINETUNING))
    (line,) = refused(plot.main, "losses", tuned, *out)
    assert "has no training losses: remove it" in line


@pytest.mark.parametrize(
    "seeds, labels",
    [((1, 2), ["alibi, seed 1", "alibi, seed 2"]), ((1, 1), ["alibi, run a", "alibi, run b"])],
)
def test_labels_name_the_encoding(seeds, labels):
    runs = [{"run": name, "pe": "alibi", "seed": n} for name, n in zip("ab", seeds, strict=True)]
    runs.append({"run": "c", "pe": "rope", "seed": 1})
    assert [plot.label_of(run, runs) for run in runs] == [*labels, "rope"]


def test_the_record_of_training_losses_makes_a_report(trained, finetuned, tmp_path, capsys):
    out = tmp_path / "a.png"
    plot.main(["losses", str(trained("alibi")), "--out", str(out)])
    assert f"record: {tmp_path / 'a.json'}" in capsys.readouterr().out
    (run,) = json.loads((tmp_path / "a.json").read_text())["runs"]
    assert (run["run"], run["pe"], run["objective"], run["seed"]) == ("alibi", "alibi", "clm", 1)
    logged = [entry for entry in log_of(trained("alibi")) if entry["kind"] == "train"]
    assert run["losses"] == [[entry["step"], entry["loss"]] for entry in logged]
    assert run["step"] == logged[-1]["step"]
    (tmp_path / "a.json").unlink()
    others = {"cable-v1": "the runs differ in more", "alibi": "two runs have the same"}
    for name, reason in others.items():  # at another length; the same run twice
        other = shutil.copytree(trained("alibi"), tmp_path / name)
        if name == "cable-v1":
            text = (other / "config.yaml").read_text()
            (other / "config.yaml").write_text(text.replace("block_size: 16", "block_size: 32"))
        plot.main(["losses", str(trained("alibi")), str(other), "--out", str(out)])
        assert f"no record: {reason}" in capsys.readouterr().out
        assert not (tmp_path / "a.json").exists()

    tuned = finetuned([[step, 3.0 - step / 100] for step in range(10, 101, 10)])
    record = json.loads((tuned / "finetune.json").read_text()) | {"settings": {"seed": 2}}
    (tuned / "finetune.json").write_text(json.dumps(record))
    (tuned / "config.json").write_text(json.dumps({"pe": "cable", "size": "bert"}))
    plot.main(["losses", str(tuned), "--out", str(out)])
    report.main([str(tmp_path / "a.json"), "--out_dir", str(tmp_path / "out")])
    assert "|     2.450 |" in (tmp_path / "out" / "losses.md").read_text()


def test_a_log_with_nan_is_named(trained, refused, tmp_path):
    run = shutil.copytree(trained("alibi"), tmp_path / "alibi")
    with open(run / "log.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 7, "loss": NaN}\n')
    (line,) = refused(plot.main, "losses", run, "--out", tmp_path / "a.png")
    assert re.search("log.jsonl: expected float .* at .*loss: train again, or remove the", line)
    assert not (tmp_path / "a.png").exists()
