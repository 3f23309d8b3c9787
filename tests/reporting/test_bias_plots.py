"""Plots of biases: files, content, and errors."""

from runtime import checkpoints

import numpy as np
import pytest
import torch

from reporting.plots import biases

PNG = b"\x89PNG"


@pytest.mark.parametrize(
    "flags",
    [["cable"], ["rope"], ["test-drift"], ["rope+fox", "--layer", "0"]],
)
def test_a_png_is_written(flags, trained, tmp_path):
    run, *others = str(trained(flags[0])), *flags[1:]
    biases.main([run, *others, "--text", "a = b", "--out", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_content_of_the_plot(trained, tmp_path, monkeypatch):
    """--tokens reads the data; up to 40 tokens are labeled; --mean is relative to the largest."""
    plotted = {}

    def note(matrices, decay, labels, title, file):
        plotted.update(matrices=matrices, decay=decay, labels=labels)

    monkeypatch.setattr(biases, "plot", note)
    run, out = str(trained("alibi")), ("--out", str(tmp_path / "a.png"))
    biases.main([run, "--tokens", "6", *out])
    assert plotted["matrices"].shape[1:] == (6, 6)
    assert len(plotted["labels"]) == 6 and plotted["decay"] is not None
    mean = np.mean(plotted["matrices"], 0)
    biases.main([run, "--tokens", "65", "--mean", *out])
    assert plotted["matrices"].shape == (1, 65, 65)
    assert plotted["labels"] is None and plotted["decay"] is None
    # ALiBi is linear in the distance, which is at most 64.
    largest = -mean[5, 0] * 64 / 5
    np.testing.assert_allclose(plotted["matrices"][0, :6, :6], mean / largest, rtol=1e-5)


def test_imported_weights_have_no_data_and_no_seed(trained, tmp_path, monkeypatch):
    model, checkpoint = checkpoints.load_model(trained("cable"), torch.device("cpu"))
    checkpoint["config"] |= {"data": None, "seed": None}
    titles = []
    monkeypatch.setattr(biases, "load_model", lambda *_, **__: (model, checkpoint))
    monkeypatch.setattr(biases, "plot", lambda *arguments: titles.append(arguments[3]))
    biases.main([str(trained("cable")), "--text", "a = b", "--out", str(tmp_path / "a.png")])
    assert titles[0].endswith("trained on unknown data at 16 tokens")


def test_dollar_signs_are_not_formulas(tmp_path):
    biases.plot(np.zeros((1, 3, 3)), None, ["a", "$$", "\\$ $"], "title", tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_heads_share_a_color_scale_that_is_white_at_zero():
    """A head with a tenth of the bias is paler. Labels of keys are vertical."""
    bias = np.where(np.tri(3, dtype=bool), -np.arange(9.0).reshape(3, 3), np.nan)
    figure = biases.draw(np.stack([bias, bias / 10]), None, ["a", "bc", "␣long"], "title")
    images = [image for axes in figure.axes for image in axes.images]
    assert [image.get_clim() for image in images] == [(-8, 8)] * 2
    assert images[0].to_rgba(np.zeros(1))[0] == pytest.approx([1, 1, 1, 1])
    assert images[0].to_rgba(-np.ones(1))[0, 2] < 1  # not white
    assert [text.get_rotation() for text in figure.axes[0].get_xticklabels()] == [90] * 3


def test_errors(refused, trained, tmp_path):
    def error(*flags):
        return refused(biases.main, *flags)[0]

    assert "expected one run" in error()
    message = error(trained("cable"), "--layer", 2)
    assert "--layer 2: the model has 2 layers: use 0 to 1" in message
    assert "fewer than two tokens" in error(trained("cable"), "--text", "a")
    assert "supports at most 16" in error(trained("learnable"), "--tokens", 60)
    assert "is not a PNG file" in error(trained("cable"), "--out", tmp_path / "out.pdf")
