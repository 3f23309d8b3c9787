"""GPT: loss, causal, KV cache, compilation, weight decay, layers of a pattern, initial weights."""

import inspect
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from conftest import ENCODINGS
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import attention
from errors import InputError
from evaluation.model_checks import V, gradients, make_lively_model, make_model
from kv_cache import Cache
from losses import MeanCrossEntropy, cross_entropies
from model import GPT, GPTConfig


@pytest.mark.parametrize(
    "dtype, exact", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_chunked_loss_matches_cross_entropy(rows, dtype, exact, monkeypatch):
    """Value and gradients, for chunks of 1, 7 and all 128 rows, with an output gradient of 1000."""
    monkeypatch.setattr("losses.LOGITS_CHUNK", rows * V)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 24, generator=generator).requires_grad_() for n in (128, V))
    targets = torch.randint(V, (128,), generator=generator)
    plain = F.cross_entropy(x.double() @ weight.double().T, targets)
    expected = torch.autograd.grad(1000 * plain, (x, weight))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = MeanCrossEntropy.apply(x, weight, targets)
        assert ours.dtype == torch.float32
        assert ours.item() == pytest.approx(plain.item(), rel=exact / 10)
        # cross_entropies is float32 under autocast, too.
        mean = cross_entropies(x, weight, targets).mean()
        assert mean.item() == pytest.approx(plain.item(), rel=1e-5)
    grads = torch.autograd.grad(1000 * ours, (x, weight))
    for grad, reference in zip(grads, expected, strict=True):
        assert grad.dtype == torch.float32
        assert (grad - reference).norm() <= exact * reference.norm()


def test_loss_never_allocates_all_logits(monkeypatch):
    monkeypatch.setattr("losses.LOGITS_CHUNK", 8 * V)
    x, weight = torch.randn(500, 24, requires_grad=True), torch.randn(V, 24, requires_grad=True)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            nonlocal largest
            result = function(*arguments, **(options or {}))
            for y in result if isinstance(result, tuple | list) else [result]:
                largest = max(largest, y.numel() if isinstance(y, torch.Tensor) else 0)
            return result

    with Watch():
        MeanCrossEntropy.apply(x, weight, torch.randint(V, (500,))).backward()
    assert largest == 500 * 24  # the gradient of x; logits would be four times that


def test_losses_of_logits_far_from_zero():
    """Logits of OpenAI's GPT-2 are near -110, which bfloat16 rounds to multiples of 0.5."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 24, generator=generator), torch.randn(V, 24, generator=generator)
    x[:, 0], weight[:, 0] = -11, 10
    targets = torch.randint(V, (64,), generator=generator)
    exact = F.cross_entropy(x.double() @ weight.double().T, targets, reduction="none")
    with torch.autocast("cpu", torch.bfloat16):
        assert (cross_entropies(x, weight, targets) - exact).abs().max() < 1e-4


def test_training_does_not_change_buffers():
    """DistributedDataParallel therefore need not copy them from rank 0 before each step."""
    for pe in ENCODINGS:
        model = make_lively_model(pe).train()
        before = {name: x.clone() for name, x in model.named_buffers()}
        tokens = torch.randint(V, (2, 8))
        model(tokens, tokens).backward()
        assert all(torch.equal(x, before[name]) for name, x in model.named_buffers()), pe


@pytest.fixture
def group_of_one():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_does_not_split_graphs(group_of_one):
    """Buckets of 1 KB would split the graph of a block into several."""
    model = make_lively_model("cable")
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model.compile(backend=counter)
    tokens = torch.randint(V, (2, 8))
    torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)(tokens, tokens).backward()
    assert counter.frame_count == 2


SUMS = torch.ops.posenc.running_sum.default, {torch.ops.aten.cumsum.default}
SIN_COS = torch.ops.posenc.circle.default, {torch.ops.aten.sin.default, torch.ops.aten.cos.default}


@pytest.mark.parametrize(
    "pe, operator, others",
    [
        *((pe, *SUMS) for pe in ("cable", "fox", "cope")),
        *((pe, *SIN_COS) for pe in ("rope", "rope+cable")),
    ],
)
def test_custom_operators_are_not_decomposed(pe, operator, others):
    """Inductor's own running sums are not deterministic on GPUs, and do not compile in torch 2.11.

    Its sines would be computed once per rotated number instead of once per angle.
    """
    targets = []

    def look(graph, inputs):
        targets.extend(node.target for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    model = make_lively_model(pe)
    model.compile(backend=backend, fullgraph=True)
    gradients(model)
    assert operator in targets and others.isdisjoint(targets)


def test_cache_is_allocated_once():
    model = make_model("rope+cable")
    cache = Cache(model, 50)

    def addresses():
        return [buffer.data_ptr() for layer in cache.layers for buffer in layer.buffers]

    with torch.no_grad():
        model(torch.randint(V, (1, 10)), cache=cache)
        before = addresses()
        for _ in range(40):
            model(torch.randint(V, (1, 1)), cache=cache)
        assert addresses() == before
        assert cache.length == 50
        with pytest.raises(AssertionError):
            model(torch.randint(V, (1, 1)), cache=cache)


@pytest.mark.parametrize(
    "pe, encoding_decays",
    [
        ("nope", []),
        ("cable", ["0.step", "0.weight", "1.step", "1.weight"]),
        ("learnable", ["0.table"]),
        ("dape+t5", []),  # convolutions and a table have several dimensions, too
        ("transformer-xl", []),
    ],
)
def test_only_linear_and_embedding_weights_decay(pe, encoding_decays):
    model = make_model(pe)
    decay, rest = model.parameter_groups(0.1)
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0)
    assert len(decay["params"]) + len(rest["params"]) == len(list(model.parameters()))
    matrices = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    layers = ["wte", *(f"h.{n}.{name}" for n in (0, 1) for name in matrices)]
    layers += [f"posenc.{name}" for name in encoding_decays]
    parameters = dict(model.named_parameters())
    assert set(decay["params"]) == {parameters[f"{layer}.weight"] for layer in layers}


def arguments(call):
    """Return {name: value} of the arguments of a noted call of attention.biased_attention."""
    return inspect.signature(attention.biased_attention).bind(*call.args, **call.kwargs).arguments


def test_running_sums_are_float32_under_autocast():
    """Rounding errors of the gates in bfloat16 would add up along the text."""
    model = make_model("cable")
    encoding = model.posenc[0]
    with (
        mock.patch.object(encoding, "features", wraps=encoding.features) as features,
        mock.patch("attention.biased_attention", wraps=attention.biased_attention) as attend,
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(torch.randint(V, (2, 30)))
    x, step = features.call_args.args[0].double(), encoding.step
    decay = F.relu(x @ step.weight.double().T + step.bias)
    (s,) = arguments(attend.call_args_list[0])["bias_inputs"].k_features
    assert_close(s.double(), -decay.cumsum(1).mT, rtol=1e-5, atol=1e-6)


def test_each_layer_of_a_pattern_takes_its_path():
    model = make_model("kerple@2_rope@1", n_layer=5)
    expected = ["dense", "dense", "batched", "dense", "dense"]
    assert [path.name for path in model.attention_paths] == expected
    with mock.patch("attention.biased_attention", wraps=attention.biased_attention) as attend:
        model(torch.randint(V, (1, 5)))
    assert [arguments(call)["path"].name for call in attend.call_args_list] == expected


def test_attn_scale():
    model, tokens = make_model("nope"), torch.randint(V, (1, 9))
    same = make_model("nope", attn_scale=model.h[0].attn.head_dim ** -0.5)  # the default
    other = make_model("nope", attn_scale=1.0)
    assert torch.equal(model(tokens), same(tokens))
    assert not torch.equal(model(tokens), other(tokens))


def test_context_of_a_pattern_is_the_shortest_of_its_layers():
    assert make_model("rope@1_rope+diet-abs@1").max_context == 32
    with pytest.raises(InputError, match="supports at most 32 positions"):
        make_model("rope@1_diet-abs@1")(torch.zeros(1, 33, dtype=torch.int64))
    assert make_model("rope@1_cable@1").max_context is None


def test_initial_weights_match_the_table():
    model = make_model("cable", n_embd=384, n_head=6, n_layer=8)
    assert_close(model.wte.weight.std(), torch.tensor(0.02), rtol=0.02, atol=0)
    assert_close(model.posenc[0].step.weight.std(), torch.tensor(0.02), rtol=0.1, atol=0)
    assert_close(model.h[3].mlp.c_fc.weight.std(), torch.tensor(0.02), rtol=0.02, atol=0)
    assert_close(model.h[3].mlp.c_proj.weight.std(), torch.tensor(0.02 / 4), rtol=0.02, atol=0)
    kinds = torch.nn.Linear | torch.nn.LayerNorm
    assert not any(m.bias.any() for m in model.modules() if isinstance(m, kinds))
    tokens = torch.randint(V, (4, 32))
    assert abs(model(tokens, tokens.roll(1)).item() - math.log(V)) < 0.2


@pytest.mark.parametrize(
    "size, millions",
    [("tiny", 45.2), ("small", 124.4), ("medium", 354.8), ("large", 774.0), ("xl", 1557.6)],
)
def test_sizes_match_gpt2(size, millions):
    with torch.device("meta"):
        model = GPT(GPTConfig(size=size, pe="learnable", vocab_size=50257))
    assert abs(model.parameter_count() / 1e6 - millions) < 0.1
