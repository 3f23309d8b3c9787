"""Tests of a training's attention path: the choice of `auto`, and its check.

On a CPU a training checks nothing, so the tests switch the check on, with paths that are wrong.
"""

import sys

import pytest
import torch
from conftest import TINY, ranks

import attention
import train_gpt
from errors import InputError
from model import GPT
from training import attention_path

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WRONG_ON_RANK_1 = """
import attention
from training import attention_path
attention_path.is_checked = lambda *_: True
def wrong(q, *inputs):
    return attention.dense(0.9 * q, *inputs)
if rank == 1:
    attention.register_path(attention.Path("batched", wrong, fused=True))
"""


def wrong_gradient(q, *inputs):
    """Compute the right output, and 0.6 of the gradient of q."""
    return attention.dense(0.6 * q + 0.4 * q.detach(), *inputs)


def wrong_long_texts(q, *inputs):
    return attention.dense(q if q.size(2) <= 512 else 0.9 * q, *inputs)


def wrong_bias(q, k, v, bias_inputs, *inputs):
    """Compute the right output, without gradients of the bias."""
    encoding, *features = bias_inputs
    features = [tuple(x.detach() for x in part) for part in features]
    return attention.dense(q, k, v, attention.BiasInputs(encoding, *features), *inputs)


def failing(*inputs):
    raise RuntimeError("no such\nkernel")


def make(pe="cable", device=CPU, **settings):
    """Return a model whose path is chosen, and its training's settings."""
    settings = {"n_embd": 32, **settings}
    config = train_gpt.Config(size="quickstart", n_head=2, pe=pe, **settings)
    model = GPT(config.gpt_config(vocab_size=64))
    attention_path.choose_path(model, config, device)
    return model, config


@pytest.mark.parametrize(
    "path, names",
    [
        ("triton", "cable fox alibi fire window:w=9 nope learnable"),
        ("sdpa", "rope diet-abs"),
        ("flex", "kerple+cable"),
        ("dense", "cope fire+t5 fire:heads=1+t5"),
        ("triton_sdpa_sdpa_flex", "window:w=9@1_rope@2_kerple+cable@1"),
    ],
)
def test_path_on_a_gpu_depends_on_the_kind_of_bias(path, names):
    """Checkpoints store it, and a model of their config has the same path."""
    pytest.importorskip("triton", reason="Triton is not installed")
    for pe in names.split():
        model, config = make(pe, GPU)
        assert attention.join_names(model.attention_paths) == model.config.attention == path
        assert GPT(model.config).attention_paths == model.attention_paths
        assert attention_path.is_checked(config, GPU)
        assert not attention_path.is_checked(config, CPU)


@pytest.mark.parametrize(
    "pe, path", [("cable", "sdpa"), ("kerple", "dense"), ("rope", "sdpa"), ("window:w=9", "dense")]
)
def test_path_without_triton_or_a_gpu(pe, path, monkeypatch):
    on_cpu = path.replace("sdpa", "batched")
    assert make(pe)[0].config.attention == on_cpu
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(attention_path, "find_spec", lambda name: None)
    assert make(pe, GPU)[0].config.attention == path


@pytest.mark.parametrize(
    "pe, settings, path",
    [
        ("rope@2_cable@1", {}, "sdpa/cudnn_sdpa/cudnn_triton_sdpa/cudnn"),
        ("nope", {}, "triton"),
        ("rope", {"dtype": "float32"}, "sdpa"),
        ("rope", {"deterministic": True}, "sdpa"),
        ("pope", {}, "sdpa"),
        # Heads of 8 columns: not Triton; of 20: not cuDNN; of 256: neither.
        ("nope", {"n_embd": 16}, "sdpa"),
        ("cable", {"n_embd": 16}, "sdpa"),
        ("rope", {"n_embd": 16}, "sdpa/cudnn"),
        ("nope", {"n_embd": 40}, "triton"),
        ("cable", {"n_embd": 40}, "triton"),
        ("rope", {"n_embd": 40}, "sdpa"),
        ("nope", {"n_embd": 512}, "sdpa"),
        ("cable", {"n_embd": 512}, "sdpa"),
        ("rope", {"n_embd": 512}, "sdpa"),
    ],
)
def test_path_on_an_h100(pe, settings, path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(attention_path, "is_hopper", lambda device: True)
    assert make(pe, GPU, **settings)[0].config.attention == path


def test_deterministic_trainings_and_named_paths():
    model, _ = make("kerple+cable", GPU, deterministic=True)
    assert model.config.attention == "dense"
    model, config = make(device=GPU, attention="dense")
    assert attention.join_names(model.attention_paths) == model.config.attention == "dense"
    assert not attention_path.is_checked(config, GPU)
    with pytest.raises(
        InputError, match="cannot compute FIRE, because its bias is not elementwise"
    ):
        make("fire", GPU, attention="flex")
    assert make("fire", GPU, objective="mlm")[0].config.attention == "dense"
    _, config = make("kerple", GPU, attention="flex")
    assert attention_path.is_checked(config, GPU)


@pytest.mark.parametrize(
    "pe, names, compute, problem, other",
    [
        ("cable", "triton", wrong_gradient, "256 tokens: dq error 0.4", "sdpa"),
        ("cable", "triton", wrong_long_texts, "600 tokens: output error", "sdpa"),
        ("fox", "triton", wrong_bias, "256 tokens: dx error 1", "sdpa"),
        ("rope", "sdpa", lambda q, *_: q * torch.nan, "256 tokens: output error nan", "dense"),
        ("rope@2_kerple@2", "sdpa_sdpa_flex_flex", failing, "RuntimeError: no such kern", "dense"),
    ],
)
def test_wrong_path_ends_with_one_line(pe, names, compute, problem, other, monkeypatch):
    """The line names another path, which all layers can take."""
    monkeypatch.setattr(attention_path, "is_checked", lambda *_: True)
    path = names.split("_")[-1]
    wrong = attention.Path(path, compute)
    monkeypatch.setitem(attention.PATHS, path, wrong)
    model, config = make(pe, GPU, attention=names)
    with pytest.raises(InputError) as raised:
        attention_path.check_paths(model, config, CPU, torch.float32)
    (line,) = raised.value.problems
    assert line.startswith(f"attention by {path} fails its check on this GPU (")
    assert problem in line and line.endswith(f"): pass --attention {other}")


@pytest.mark.parametrize("path", ["sdpa/flash", "triton"])
def test_correct_path_passes(path, monkeypatch):
    """Random states do not change, so that a resumed training draws the same numbers."""
    monkeypatch.setattr(attention_path, "is_checked", lambda *_: True)
    if path == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    length = 100 if path == "triton" else 1024
    model, config = make("fox", GPU, attention=path, block_size=length)
    state = torch.get_rng_state()
    attention_path.check_paths(model, config, CPU, torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_rank_with_a_wrong_path_ends_all_ranks(data_dir, tmp_path):
    flags = [*TINY, "--data", data_dir, "--out_dir", tmp_path / "run", "--pe", "cable"]
    results = ranks(2, *flags, code=WRONG_ON_RANK_1)
    assert [status for status, _, _ in results] == [2, 2], results
    (line,) = [line for _, _, errors in results for line in errors.splitlines()]
    assert line.startswith("error: attention by batched fails its check on this GPU (cable, 16 tok")
    assert line.endswith("pass --attention sdpa")
    assert not list((tmp_path / "run").glob("*.pt"))
