"""The pictures are written, and what cannot be drawn is told."""

import numpy as np
import pytest

from reporting import bias_plots


@pytest.mark.parametrize(
    "flags",
    [["cable"], ["cable", "--scores"], ["rope"], ["test-drift"], ["rope+fox", "--layer", "0"]],
)
def test_picture_is_written(flags, trained, tmp_path):
    bias_plots.main(
        [str(trained(flags[0])), *flags[1:], "--text", "a = b", "--out", str(tmp_path / "out.png")]
    )
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_drawn(trained, tmp_path, monkeypatch):
    """Heads' mean over its largest magnitude; tokens of the data; names of tokens as long as they have room."""
    drawn = {}
    monkeypatch.setattr(
        bias_plots,
        "plot",
        lambda matrices, falls, labels, title, file: drawn.update(m=matrices, f=falls, l=labels),
    )
    run = trained("alibi")
    bias_plots.main([str(run), "--tokens", "6", "--out", str(tmp_path / "a.png")])
    assert drawn["m"].shape[1:] == (6, 6) and len(drawn["l"]) == 6 and drawn["f"] is not None
    mean = np.mean(drawn["m"], 0)
    bias_plots.main([str(run), "--tokens", "65", "--mean", "--out", str(tmp_path / "a.png")])
    assert drawn["m"].shape == (1, 65, 65) and drawn["l"] is None and drawn["f"] is None
    np.testing.assert_allclose(
        drawn["m"][0, :6, :6], mean / (-mean[5, 0] * 64 / 5), rtol=1e-5
    )  # alibi: linear, the most at 64


def test_dollars_are_no_formula(tmp_path):
    bias_plots.plot(np.zeros((1, 3, 3)), None, ["a", "$$", "\\$ $"], "title", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(refused, trained, tmp_path):
    main = bias_plots.main
    assert "name one run" in refused(main)[0]
    assert (
        "layer 2: the model has 2: choose 0 to 1"
        in refused(main, trained("cable"), "--layer", 2)[0]
    )
    assert "no two tokens" in refused(main, trained("cable"), "--text", "a")[0]
    assert "takes 16 at most" in refused(main, trained("learnable"), "--tokens", 60)[0]
    assert (
        "the picture is a PNG" in refused(main, trained("cable"), "--out", tmp_path / "out.pdf")[0]
    )
