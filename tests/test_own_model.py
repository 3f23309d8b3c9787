"""examples/own_model.py: it trains, every encoding acts in it, and its KV cache is exact."""

import re
import shutil

import pytest
import torch
from conftest import NAMES, ROOT, TINY, python
from test_docs import python_code

import more_encodings  # noqa: F401
import pe_spec
import train_gpt
from errors import InputError
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


def test_gates_are_initialized_as_in_gpt_and_prepare_keeps_them():
    posenc = own_model.Model("cable").posenc
    gate = posenc[0].step
    before = gate.weight.clone()
    assert before.std().item() == pytest.approx(0.02, rel=0.2) and not gate.bias.any()
    pe_spec.prepare(posenc, torch.optim.SGD(posenc.parameters()))
    assert gate.weight.equal(before)


@pytest.mark.parametrize("pe", ["learnable", "sinusoidal", "learnable+cable"])
def test_a_model_that_never_embeds_is_refused(pe):
    model = random_model(pe)
    x, pos, encoding = torch.randn(1, 20, own_model.WIDTH), torch.arange(20)[None], model.posenc[1]
    with pytest.raises(InputError, match=r"call x = posenc\[0\].embed"):
        model.blocks[1](x, pos, encoding, None)
    model.posenc[0].embed(x, pos)
    model.blocks[1](x, pos, encoding, None)


def test_a_model_that_never_attends_is_refused(monkeypatch):
    def attend(encoding, x, q, k, v, pos, cache):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    monkeypatch.setattr(own_model.attention, "attend", attend)
    with pytest.raises(InputError, match="call attention.attend instead"):
        own_model.train(own_model.Model("rope"), torch.arange(200), 1)


def test_bounded_parameters_need_an_optimizer_that_clamps():
    own_model.Model("cable")(tokens(20))  # has none
    for pe in ("kerple", "rope+kerple"):
        model = own_model.Model(pe)
        with pytest.raises(InputError, match="call pe_spec.prepare"):
            model(tokens(20))
        model.eval()(tokens(20))


@torch.no_grad()
def test_a_full_cache_is_refused():
    """A single token would be dropped without a word."""
    cache = own_model.LayerCache(4)
    k = torch.ones(1, 2, 4, 8)
    cache.extend(k, k)
    with pytest.raises(InputError, match="a KV cache of 4 tokens gets 5"):
        cache.extend(k[:, :, :1], k[:, :, :1])


def test_keys_of_a_cache_of_the_models_own_are_refused():
    encoding = own_model.Model("cable").posenc[0]
    x, k = torch.randn(1, 1, own_model.WIDTH), torch.randn(1, own_model.HEADS, 9, 16)
    with pytest.raises(InputError, match="earlier tokens as a kv_cache.LayerCache"):
        own_model.attention.attend(encoding, x, k[:, :, :1], k, k, torch.tensor([[8]]))


def test_the_checks_compile_no_layer_again():
    model, graphs = own_model.Model("kerple"), []
    for block in model.blocks:
        block.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    own_model.train(model, torch.arange(200), 1)
    first = len(graphs)
    own_model.train(model, torch.arange(200), 2)
    assert 0 < first == len(graphs)


CORE_FILES_ALONE = """
import sys, torch, attention, pe_spec, posenc
for pe in sys.argv[1:] or posenc.ENCODINGS:
    encodings = pe_spec.build(pe, 2, 8, 16, layers=2)
    pe_spec.prepare(encodings, torch.optim.SGD([torch.zeros(1)]))
    pos = torch.arange(6)[None]
    x = encodings[0].embed(torch.randn(1, 6, 8), pos)
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    assert attention.attend(encodings[1], x, q, k, v, pos).shape == q.shape
"""


def test_the_files_to_copy_are_enough(tmp_path):
    """Those that docs/own_model.md says to copy, in a folder without others."""
    page = (ROOT / "docs/own_model.md").read_text()
    for name in re.search(r"^cp -r (.*) \S+$", page, re.MULTILINE)[1].split():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)

    def errors(*pes):
        return python("-c", CORE_FILES_ALONE, *pes, cwd=tmp_path, PYTHONPATH="").stderr

    assert "Error" not in errors()
    for pe in ("rope+cable", "cable:heads=1"):
        assert "InputError: combinations as rope+cable and the" in errors(pe)
    shutil.copytree(ROOT / "more_encodings", tmp_path / "more_encodings")
    assert "Error" not in errors("rope+cable")


def test_logits_of_a_run(data_dir, tmp_path, monkeypatch):
    """The block of docs/own_model.md that loads a run."""
    out_dir = tmp_path / "runs" / "quickstart" / "cable"
    train_gpt.main([*TINY, "--data", str(data_dir), "--out_dir", str(out_dir)])
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(next(code for code in python_code("own_model.md") if "logits" in code), scope)
    assert scope["logits"].shape == (1, 13, 257)  # without the vocabulary's padding
    assert scope["logits"].isfinite().all()
