"""Plots of biases: files, content, and errors."""

import io

from runtime import checkpoints

import numpy as np
import pytest
import torch

import plot


@pytest.mark.parametrize("pe", ["cable", "rope", "k-cable", "rope+fox"])
def test_a_png_is_written(pe, trained, tmp_path):
    flags = ["--layer", "0", "--text", "a = b", "--out", str(tmp_path / "out.png")]
    plot.main(["biases", str(trained(pe)), *flags])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_content_of_the_plot(trained, tmp_path, monkeypatch):
    """--tokens reads the data; up to 40 tokens are labeled; --mean is relative to the largest."""
    plotted = {}

    def note(file, matrices, decay, labels, title):
        plotted.update(matrices=matrices, decay=decay, labels=labels)
        return draw(file, matrices, decay, labels, title)

    draw = plot.draw_heads
    monkeypatch.setattr(plot, "draw_heads", note)
    run, out = str(trained("alibi")), ("--out", str(tmp_path / "a.png"))
    plot.main(["biases", run, "--tokens", "6", *out])
    assert plotted["matrices"].shape[1:] == (6, 6)
    assert len(plotted["labels"]) == 6 and plotted["decay"] is not None
    mean = np.mean(plotted["matrices"], 0)
    plot.main(["biases", run, "--tokens", "65", "--mean", *out])
    assert plotted["matrices"].shape == (1, 65, 65)
    assert plotted["labels"] is None and plotted["decay"] is None
    # ALiBi is linear in the distance, which is at most 64.
    largest = -mean[5, 0] * 64 / 5
    np.testing.assert_allclose(plotted["matrices"][0, :6, :6], mean / largest, rtol=1e-5)


def test_imported_weights_have_no_data_and_no_seed(trained, tmp_path, monkeypatch):
    model, checkpoint = checkpoints.load_model(trained("cable"), torch.device("cpu"))
    checkpoint["config"] |= {"data": None, "seed": None}
    titles, draw = [], plot.draw_heads
    monkeypatch.setattr(plot, "load_model", lambda *_, **__: (model, checkpoint))
    monkeypatch.setattr(plot, "draw_heads", lambda *all_: titles.append(all_[-1]) or draw(*all_))
    # Dollar signs are no formulas.
    plot.main(
        ["biases", str(trained("cable")), "--text", "a $$ \\$", "--out", str(tmp_path / "a.png")]
    )
    assert titles[0].endswith("trained on unknown data at 16 tokens")


def test_heads_share_a_color_scale_that_is_white_at_zero():
    """A head with a tenth of the bias is paler."""
    bias = np.where(np.tri(3, dtype=bool), -np.arange(9.0).reshape(3, 3), np.nan)
    matrices, labels = np.stack([bias, bias / 10]), ["a", "bc", "␣long"]
    figure = plot.draw_heads(io.BytesIO(), matrices, None, labels, "title")
    images = [image for axes in figure.axes for image in axes.images]
    assert [image.get_clim() for image in images] == [(-8, 8)] * 2
    assert images[0].to_rgba(np.zeros(1))[0] == pytest.approx([1, 1, 1, 1], abs=0.05)
    assert images[0].to_rgba(np.full(1, -8))[0, 2] < 0.5  # red
