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
from training import attention_path, settings

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WRONG_ON_RANK_1 = """
import attention
from training import settings
settings.checks_paths = lambda *_: True
def wrong(q, *inputs):
    return attention.dense(0.9 * q, *inputs)
if rank == 1:
    attention.PATHS["batched"] = attention.Path("batched", wrong, takes_padding=True)
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
    dtype = torch.float32 if config.dtype == "float32" else torch.bfloat16
    model.choose_paths(device, dtype, training=True, deterministic=config.deterministic)
    return model, config


def paths_of(model):
    return attention.join_names(model.attention_paths)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Pretend a GPU, its capability and its version of cuDNN."""

    def pretend(capability=(8, 0), cudnn=91501, hip=None):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
        monkeypatch.setattr(torch.version, "hip", hip)

    pretend()
    return pretend


@pytest.mark.parametrize(
    "path, names",
    [
        ("triton", "cable fox alibi fire window:w=9 window:w=9+rope nope learnable"),
        ("sdpa", "rope diet-abs"),
        ("flex", "kerple+cable"),
        ("dense", "cope fire+t5 fire:heads=1+t5"),
        ("triton_sdpa_sdpa_flex", "window:w=9@1_rope@2_kerple+cable@1"),
    ],
)
def test_path_on_a_gpu_depends_on_the_kind_of_bias(path, names):
    pytest.importorskip("triton", reason="Triton is not installed")
    for pe in names.split():
        model, config = make(pe, GPU)
        assert paths_of(model) == path
        assert settings.checks_paths(config, GPU)
        assert not settings.checks_paths(config, CPU)


@pytest.mark.parametrize(
    "path, names",
    [
        ("sdpa", "cable alibi rope nope"),
        ("triton", "t5 t5-clip kerple fire sandwich k-cable mep window:w=9+alibi"),
        ("dense", "cope dape"),
    ],
)
def test_evaluation_on_a_gpu_takes_a_kernel_where_one_computes_the_bias(path, names):
    pytest.importorskip("triton", reason="Triton is not installed")
    for pe in names.split():
        model, _ = make(pe)
        model.choose_paths(GPU, torch.bfloat16)
        assert paths_of(model) == path, pe


@pytest.mark.parametrize(
    "pe, path", [("cable", "sdpa"), ("kerple", "dense"), ("rope", "sdpa"), ("window:w=9", "dense")]
)
def test_path_without_triton_or_a_gpu(pe, path, monkeypatch):
    assert paths_of(make(pe)[0]) == path.replace("sdpa", "batched")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    assert paths_of(make(pe, GPU)[0]) == path


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
def test_path_on_an_h100(pe, settings, path, gpu):
    pytest.importorskip("triton", reason="Triton is not installed")
    gpu((9, 0))
    assert paths_of(make(pe, GPU, **settings)[0]) == path


@pytest.mark.parametrize("device", [((9, 0), 91500), ((9, 0), None), ((9, 4), 3_003_000, "6.4")])
def test_cudnn_is_left_out_where_it_is_wrong_or_missing(device, gpu):
    """Before 9.15.1 it reads out of bounds; AMD reports capability 9, and MIOpen's version."""
    gpu(*device)
    assert paths_of(make("rope", GPU)[0]) == "sdpa"


def test_deterministic_trainings_and_named_paths():
    assert paths_of(make("kerple+cable", GPU, deterministic=True)[0]) == "dense"
    with pytest.raises(InputError, match="attention flex is not deterministic"):
        make("kerple", GPU, attention="flex", deterministic=True)
    model, config = make(device=GPU, attention="dense")
    assert paths_of(model) == "dense"
    assert not settings.checks_paths(config, GPU)
    with pytest.raises(
        InputError, match="cannot compute FIRE, because its bias is not elementwise"
    ):
        make("fire", GPU, attention="flex")
    assert paths_of(make("fire", GPU, objective="mlm")[0]) == "dense"
    _, config = make("kerple", GPU, attention="flex")
    assert settings.checks_paths(config, GPU)


@pytest.mark.parametrize(
    "pe, names, compute, problem, other",
    [
        (
            "cable",
            "triton_triton_triton_triton",
            wrong_gradient,
            "256 tokens: dq error 0.4",
            "sdpa",
        ),
        (
            "cable",
            "triton_triton_triton_triton",
            wrong_long_texts,
            "600 tokens: output error",
            "sdpa",
        ),
        ("fox", "triton_triton_triton_triton", wrong_bias, "256 tokens: dx error 1", "sdpa"),
        (
            "rope",
            "sdpa_sdpa_sdpa_sdpa",
            lambda q, *_: q * torch.nan,
            "256 tokens: output error nan",
            "dense",
        ),
        ("rope@2_kerple@2", "sdpa_sdpa_flex_flex", failing, "RuntimeError: no such kern", "dense"),
    ],
)
def test_wrong_path_ends_with_one_line(pe, names, compute, problem, other, monkeypatch):
    """The line names another path, which all layers can take."""
    path = names.split("_")[-1]
    wrong = attention.Path(path, compute)
    monkeypatch.setitem(attention.PATHS, path, wrong)
    model, config = make(pe)
    model.attention_paths = tuple(map(attention.get_path, names.split("_")))
    with pytest.raises(InputError) as raised:
        attention_path.check_paths(model, config, CPU, torch.float32)
    (line,) = raised.value.problems
    assert line.startswith(f"attention by {path} fails its check on this GPU (")
    assert problem in line and line.endswith(f"): pass --attention {other}")


@pytest.mark.parametrize("path", ["sdpa/flash", "triton"])
def test_correct_path_passes(path):
    """Random states do not change, so that a resumed training draws the same numbers."""
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
