"""examples/own_model.py: it trains, every encoding acts in it, and its KV cache is exact."""

import pytest
import torch
from conftest import NAMES, TINY
from test_docs import python_code

import more_encodings  # noqa: F401
import pe_spec
import train_gpt
from examples import own_model


def random_model(pe: str) -> own_model.Model:
    """Return a model whose encoding has random parameters, with the same network for every pe."""
    torch.manual_seed(0)
    model = own_model.Model("nope")
    model.posenc = pe_spec.build(pe, own_model.HEADS, own_model.WIDTH, own_model.CONTEXT, 2)
    torch.manual_seed(1)
    for parameter in model.posenc.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 1)
    return model.eval()


def tokens(count: int) -> torch.Tensor:
    return torch.randint(256, (1, count), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("pe", NAMES)
def test_every_encoding_changes_the_output(pe):
    """`learnable` and `sinusoidal` act in `embed` only, `ssmax` and `rope` in `rotate`."""
    with torch.no_grad():
        logits, plain = (random_model(name)(tokens(120)) for name in (pe, "nope"))
    assert logits.isfinite().all()
    assert torch.allclose(logits, plain, atol=1e-5) == (pe == "nope")


@pytest.mark.parametrize("pe", NAMES)
def test_cached_tokens_have_the_logits_of_one_call(pe):
    model, text = random_model(pe), tokens(120)
    cache = [own_model.LayerCache(120, window=None) for _ in model.blocks]
    with torch.no_grad():
        expected = model(text)
        parts = [model(part, cache) for part in text.split([50, 1, 68, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-4, rtol=1e-3)


def test_training_lowers_the_loss_and_clamps_parameters():
    torch.manual_seed(0)
    model = own_model.Model("kerple")
    text = torch.tensor([*b"a text that repeats. " * 40])
    first = own_model.train(model, text, 1)
    encoding = model.posenc[0]
    encoding.r1.data.fill_(-1.0)
    assert own_model.train(model, text, 20) < first - 1
    assert encoding.r1.min() >= 0.01
    generated = own_model.generate(model.eval(), text[None, :21], 30)
    assert generated.shape == (1, 51) and generated[0, :21].equal(text[:21])


def test_gates_are_initialized_as_in_gpt():
    model = own_model.Model("cable")
    optimizer = torch.optim.AdamW(model.parameters())
    pe_spec.prepare(model.posenc, optimizer)
    for gate in (model.posenc[0].step, model.posenc[1].weight):
        assert gate.weight.std().item() == pytest.approx(0.02, rel=0.2)
        assert not gate.bias.any()


def test_logits_of_a_run(data_dir, tmp_path, monkeypatch):
    """The block of docs/own_model.md that loads a run."""
    out_dir = tmp_path / "runs" / "cable"
    train_gpt.main([*TINY, "--data", str(data_dir), "--out_dir", str(out_dir)])
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(next(code for code in python_code("own_model.md") if "logits" in code), scope)
    assert scope["logits"].shape == (1, 13, 257)  # without the vocabulary's padding
    assert scope["logits"].isfinite().all()
