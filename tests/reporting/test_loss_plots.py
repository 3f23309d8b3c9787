"""The losses that are drawn are those of the trainings."""

import json

import pytest
from conftest import log_of

from reporting import figures, loss_plots


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn: {label: points}."""
    found = {}
    draw = figures.losses
    monkeypatch.setattr(
        figures, "losses", lambda lines, file: found.update(lines) or draw(lines, file)
    )
    return found


def test_losses_of_trainings(trained, tmp_path, drawn):
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "finetune.json").write_text(
        json.dumps({"losses": [[1, 3.0], [2, 2.5], [3, 2.25]]})
    )
    loss_plots.main(
        [
            str(trained("alibi")),
            str(tmp_path / "tuned"),
            "--from_step",
            "2",
            "--out",
            str(tmp_path / "a.png"),
        ]
    )
    assert drawn == {
        "alibi": [(r["step"], r["loss"]) for r in log_of(trained("alibi")) if r["kind"] == "train"],
        "tuned": [(2, 2.5), (3, 2.25)],
    }
    assert len(drawn["alibi"]) == 3 and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    loss_plots.main([str(trained("alibi")), "--kind", "val", "--out", str(tmp_path / "b.png")])
    assert [step for step, _ in drawn["alibi"]] == [3, 6]


def test_refusals(refused, trained, tmp_path):
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "finetune.json").write_text('{"losses": [[1, 3.0]]}')
    run, out = loss_plots.main, ("--out", tmp_path / "a.png")
    assert "no run named" in refused(run)[0]
    assert "the picture is a PNG" in refused(run, trained("alibi"), "--out", tmp_path / "a.pdf")[0]
    assert "holds neither log.jsonl nor finetune.json" in refused(run, tmp_path, *out)[0]
    assert (
        "has no val losses from step 1 on"
        in refused(run, tmp_path / "tuned", "--kind", "val", *out)[0]
    )
    assert (
        "has no train losses from step 7 on"
        in refused(run, trained("alibi"), "--from_step", "7", *out)[0]
    )
    assert not (tmp_path / "a.png").exists()
