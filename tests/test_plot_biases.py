"""Plots of biases: files, content, and errors."""

import io

import numpy as np
import pytest
import record_examples
import tokenizers
import torch
from test_report import save

import import_pretrained
import plot
import report
from reporting import figures
from training import checkpoints


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


def test_titles_name_the_model(tmp_path, trained, monkeypatch):
    """By its source if imported, by its size if that has a name, else by its parameters.

    The Llama has the shape of the quick start's model. Dollar signs are no formulas.
    """
    transformers = pytest.importorskip("transformers")
    shape = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 128}
    shape |= {"intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 32}
    source, imported = tmp_path / "my-llama", str(tmp_path / "run")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(source)
    vocabulary = {character: n for n, character in enumerate("abc $\\")}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(source)
    import_pretrained.main([str(source), "--out_dir", imported])

    titles, run, out = [], str(trained("cable")), ("--out", str(tmp_path / "a.png"))
    draw = figures.new_figure
    monkeypatch.setattr(figures, "new_figure", lambda *all_: titles.append(all_[2]) or draw(*all_))
    plot.main(["biases", imported, "--text", "a $$ \\$", *out])
    plot.main(["biases", run, *out])
    plot.main(["losses", run, *out])
    for change in ({"settings": {"model": [str(source)]}}, {"size": "custom"}, {}):
        path = save(tmp_path / "a.json", record_examples.perplexity() | change)
        report.main([path, "--out_dir", str(tmp_path / "report")])
    name = f"{tmp_path.name}/my-llama"
    model, _ = checkpoints.load_model(run, torch.device("cpu"))
    number = f"{sum(each.numel() for each in model.parameters()) / 1e6:.1f}M"
    for title, text in zip(
        titles,
        (
            f"\n{name} (0.4M parameters), rope:base=10000, layer 3 of 0–3, trained on unknown",
            f"\nmodel ({number} parameters), cable, layer 1 of 0–1, trained on toy at 16 tokens",
            "\ncustom model on toy, trained at 16 tokens",
            f"toy (val), {name} (0.8M parameters), trained at 256 tokens",
            "toy (val), model (0.8M parameters), trained at 256 tokens",
            "toy (val), quickstart model (0.8M parameters), trained at 256 tokens",
        ),
        strict=True,
    ):
        assert text in title


def test_heads_share_a_color_scale_that_is_white_at_zero():
    """A head with a tenth of the bias is paler."""
    bias = np.where(np.tri(3, dtype=bool), -np.arange(9.0).reshape(3, 3), np.nan)
    matrices, labels = np.stack([bias, bias / 10]), ["a", "bc", "␣long"]
    figure = plot.draw_heads(io.BytesIO(), matrices, None, labels, "title")
    images = [image for axes in figure.axes for image in axes.images]
    assert [image.get_clim() for image in images] == [(-8, 8)] * 2
    assert images[0].to_rgba(np.zeros(1))[0] == pytest.approx([1, 1, 1, 1], abs=0.05)
    assert images[0].to_rgba(np.full(1, -8))[0, 2] < 0.5  # red
