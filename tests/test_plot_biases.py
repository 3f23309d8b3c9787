"""What the pictures show is what the model adds."""

import pytest
import torch
from numpy.testing import assert_allclose

import plot_biases
import runs


def test_bias_is_the_encodings(trained):
    model, _ = runs.load_model(trained("alibi"), torch.device("cpu"))
    bias, scores, falls = plot_biases.look(model, torch.tensor([[5, 6, 7]]), layer=1)
    assert bias.shape == (2, 3, 3)  # two heads with slopes 1/16 and 1/256
    assert_allclose(bias[0, 2], [-2 / 16, -1 / 16, 0])
    assert_allclose(bias[1, 2], [-2 / 256, -1 / 256, 0])
    assert bias[0, 0, 1].isnan()
    assert_allclose(falls, [[0, 1, 1], [0, 1, 1]])


def test_falls_add_up_to_the_bias(trained):
    model, _ = runs.load_model(trained("cable"), torch.device("cpu"))
    model.posenc[-1].step.bias.data += 1  # no head without a fall
    bias, scores, falls = plot_biases.look(model, torch.arange(9)[None], layer=-1)
    weight = bias[:, 8, 0] / -falls[:, 1:].sum(1)  # g of the last query
    assert_allclose(bias[:, 8, 3], -weight * falls[:, 4:].sum(1), rtol=1e-4, atol=1e-6)


def test_scores_are_those_of_attention(trained, monkeypatch):
    """softmax(scores) v is what the layer's attention returns before its output projection."""
    for pe in ("rope", "cable", "rope+fox", "t5"):
        model, _ = runs.load_model(trained(pe), torch.device("cpu"))
        tokens, attn, seen = torch.arange(40, 60)[None], model.h[1].attn, []
        attn.c_proj.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        attn.c_attn.register_forward_hook(lambda _, arguments, output: seen.append(output))
        bias, scores, falls = plot_biases.look(model, tokens, layer=1)
        v = seen[0].chunk(3, -1)[2].unflatten(-1, (2, -1)).transpose(1, 2)
        weights = scores.nan_to_num(-torch.inf, neginf=-torch.inf).softmax(-1)
        assert_allclose((weights @ v)[0].transpose(0, 1).flatten(1), seen[1][0].detach(), atol=1e-5)
        assert (bias is None) == (pe == "rope") and (falls is None) == (pe in ("rope", "t5"))


@pytest.mark.parametrize("flags", [["cable"], ["cable", "--scores"], ["rope"], ["test-drift"], ["rope+fox", "--layer", "0"]])
def test_picture_is_written(flags, trained, tmp_path):
    plot_biases.main([str(trained(flags[0])), *flags[1:], "--text", "a = b", "--out", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(refused, trained, tmp_path):
    main = plot_biases.main
    assert "name one run" in refused(main)[0]
    assert "layer 2: the model has 2: choose 0 to 1" in refused(main, trained("cable"), "--layer", 2)[0]
    assert "no two tokens" in refused(main, trained("cable"), "--text", "a")[0]
    assert "the picture is a PNG" in refused(main, trained("cable"), "--out", tmp_path / "out.pdf")[0]
