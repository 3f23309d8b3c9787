"""What the pictures show is what the model adds."""

import torch
from numpy.testing import assert_allclose

import plot_biases
import runs


def test_bias_is_the_encodings(trained):
    model, _ = runs.load_model(trained("alibi"), torch.device("cpu"))
    bias, falls = plot_biases.biases(model, torch.tensor([[5, 6, 7]]), layer=1)
    assert bias.shape == (2, 3, 3)  # two heads with slopes 1/16 and 1/256
    assert_allclose(bias[0, 2], [-2 / 16, -1 / 16, 0])
    assert_allclose(bias[1, 2], [-2 / 256, -1 / 256, 0])
    assert bias[0, 0, 1].isnan()
    assert_allclose(falls, [[0, 1, 1], [0, 1, 1]])


def test_falls_add_up_to_the_bias(trained):
    model, _ = runs.load_model(trained("cable"), torch.device("cpu"))
    model.posenc[-1].step.bias.data += 1  # no head without a fall
    bias, falls = plot_biases.biases(model, torch.arange(9)[None], layer=-1)
    weight = bias[:, 8, 0] / -falls[:, 1:].sum(1)  # g of the last query
    assert_allclose(bias[:, 8, 3], -weight * falls[:, 4:].sum(1), rtol=1e-4, atol=1e-6)


def test_picture_is_written(trained, tmp_path):
    for pe in ("cable", "test-drift"):
        plot_biases.main([str(trained(pe)), "--text", "a = b", "--out", str(tmp_path / f"{pe}.png")])
        assert (tmp_path / f"{pe}.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(refused, trained, tmp_path):
    main = plot_biases.main
    assert "name one run" in refused(main)[0]
    assert "rope adds no bias to the logits" in refused(main, trained("rope"))[0]
    assert "layer 2: the model has 2: choose 0 to 1" in refused(main, trained("cable"), "--layer", 2)[0]
    assert "no two tokens" in refused(main, trained("cable"), "--text", "a")[0]
