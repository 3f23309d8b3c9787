"""The network: equal to Hugging Face's GPT-2, causal for every encoding, any length, and what AdamW may decay."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ENCODINGS
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from errors import InputError
from generation.kv_cache import Cache
from hf_interop.pretrained import load_pretrained
from model import GPT, SIZES, GPTConfig, MeanCrossEntropy, cross_entropies

V = 96


def make(pe, **settings):
    torch.manual_seed(0)
    return GPT(
        GPTConfig(
            **{
                "size": "quickstart",
                "pe": pe,
                "vocab_size": V,
                "block_size": 32,
                "n_layer": 2,
                "n_head": 3,
                "n_embd": 24,
                **settings,
            }
        )
    ).eval()


def test_equal_to_hugging_face(tmp_path):
    """GPT-2 with random weights, saved by transformers and loaded here: equal logits and loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_positions=32, n_embd=24, n_layer=2, n_head=3)
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(str(tmp_path)).eval()
    tokens = torch.randint(V, (2, 32))
    assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    assert_close(
        ours(tokens, tokens), F.cross_entropy(theirs(tokens).logits.flatten(0, 1), tokens.flatten())
    )


def test_pretrained_models_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="no GPT-2 model at .*: name a folder with config.json"):
        load_pretrained(str(tmp_path))


def test_without_transformers_the_mend_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="pip install transformers"):
        load_pretrained("gpt2")


@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("path", ["auto", "dense"])
def test_future_tokens_never_move_past_logits(pe, path):
    model = make(pe, attention=path)
    tokens = torch.randint(V, (2, 30))
    changed = tokens.clone()
    changed[:, 17:] = (changed[:, 17:] + 1) % V
    before, after = model(tokens), model(changed)
    assert_close(after[:, :17], before[:, :17], rtol=0, atol=1e-5)
    assert (after[:, 17:] - before[:, 17:]).abs().max() > 1e-3


@pytest.mark.parametrize("pe", ENCODINGS)
def test_any_length_up_to_the_limit(pe):
    model = make(pe)
    tokens = torch.randint(V, (1, 150))
    for length in (1, 2, 32):
        assert model(tokens[:, :length]).shape == (1, length, V)
    if model.max_context is None:
        assert_close(model(tokens)[:, :20], model(tokens[:, :20]), rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(InputError, match="supports at most 32 positions"):
            model(tokens)


@pytest.mark.parametrize(
    "pe", [pe for pe in ENCODINGS if pe not in ("nope", "dape", "window")]
)  # all in sight
def test_order_matters(pe):
    """With one layer and no encoding, the last logits are those of a bag of the tokens before."""
    model, bag = make(pe, n_layer=1), make("nope", n_layer=1)
    for module in (*model.modules(), *bag.modules()):
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(
                module.weight, std=0.3, generator=torch.Generator().manual_seed(0)
            )
    for parameter in model.posenc.parameters():
        if parameter.abs().max() < 0.1:  # as cope's and shaw's at the start
            torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.arange(20)[None]
    turned = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    assert_close(bag(tokens)[:, -1], bag(turned)[:, -1], rtol=1e-4, atol=1e-4)
    difference = (model(tokens)[:, -1] - model(turned)[:, -1]).abs().max()
    assert difference > 1e-2 or pe == "test-salience", (
        difference
    )  # whose bias is made of the tokens alone


@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_parameter_learns(pe):
    model = make(pe)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.clamp_parameters_()
    tokens = torch.randint(V, (4, 32))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for parameter in model.parameters()
    )


def gradients(model):
    """Loss and gradients of every parameter for the same tokens."""
    tokens = torch.randint(V, (4, 33), generator=torch.Generator().manual_seed(3))
    model.zero_grad()
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize(
    "dtype, exact", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_loss_in_chunks_is_the_plain_one(rows, dtype, exact, monkeypatch):
    """Value and gradients, chunks of 1, 7 and all of 128 rows, a thousand times as large as a mean would be on the way back."""
    monkeypatch.setattr("model.LOGITS_CHUNK", rows * V)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 24, generator=generator).requires_grad_() for n in (128, V))
    targets = torch.randint(V, (128,), generator=generator)
    plain = F.cross_entropy(x.double() @ weight.double().T, targets)
    expected = torch.autograd.grad(1000 * plain, (x, weight))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = MeanCrossEntropy.apply(x, weight, targets)
        assert ours.dtype == torch.float32 and ours.item() == pytest.approx(
            plain.item(), rel=exact / 10
        )
        assert cross_entropies(x, weight, targets).mean().item() == pytest.approx(
            plain.item(), rel=1e-5
        )  # in float32 whatever autocast
    for found, right in zip(torch.autograd.grad(1000 * ours, (x, weight)), expected):
        assert found.dtype == torch.float32 and (found - right).norm() <= exact * right.norm()


def test_loss_never_holds_all_logits(monkeypatch):
    monkeypatch.setattr("model.LOGITS_CHUNK", 8 * V)
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


@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("window", [1, 9, 200])
def test_a_window_hides_what_is_further_back(pe, window, monkeypatch):
    """Chunks of 16 through a cache of `window` tokens, against attention written out with every pair in one matrix."""
    model, tokens, written = lively(pe), torch.randint(V, (2, 70)), []

    def plain(q, k, v, bias_inputs, scale, *_):
        encoding, q_features, k_features = bias_inputs
        distance = torch.arange(70)[:, None] - torch.arange(70)
        mask = (distance >= 0) & (distance < min(window, encoding.window_size or window))
        logits, bias = q @ k.mT * scale, torch.zeros(1, 1, 1, 1)
        if encoding.bias is not None:
            bias = encoding.bias(
                tuple(s[..., None] for s in q_features),
                tuple(s[..., None, :] for s in k_features),
                torch.arange(3)[:, None, None],
            )
        if encoding.logits_transform is not None:
            bias = bias + encoding.logits_transform(logits, bias, q, distance, mask)
        return (logits + bias).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    monkeypatch.setattr("model.CACHE_CHUNK", 16)
    monkeypatch.setattr("attention.CHUNK_ELEMENTS", 1)
    ours = model.losses(tokens, tokens, cache_window=window)
    caches = []
    monkeypatch.setattr("model.Cache", lambda *a, **k: caches.append(Cache(*a, **k)) or caches[-1])
    assert_close(model.losses(tokens, tokens[:, -20:], cache_window=window), ours[:, -20:])
    assert all(
        buffer.size(2) <= window - 1 + 16 for layer in caches[0].layers for buffer in layer.buffers
    )
    monkeypatch.setattr("attention.attend", plain)
    with torch.no_grad():
        expected = F.cross_entropy(model(tokens).mT, tokens, reduction="none")
    assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pe", ENCODINGS)
def test_activation_checkpointing_changes_nothing_but_memory(pe):
    model = lively(pe)
    plain = gradients(model)
    model.activation_checkpointing = True
    blocks = []
    model.h[0].register_forward_pre_hook(lambda *_: blocks.append(1))
    for ours, theirs in zip(gradients(model), plain):
        assert_close(ours, theirs)
    assert len(blocks) == 2  # once more in backward


@pytest.mark.parametrize("pe", ENCODINGS)
def test_training_compiles_to_a_graph_of_all_blocks_and_one_of_the_loss(pe):
    """Without a break, so without a wait for the device either; values and gradients are those of eager mode."""
    model = lively(pe)
    plain = gradients(model)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(
        "aot_eager_decomp_partition"
    )  # as inductor takes a graph apart, without its C++
    model.compile(backend=counter, fullgraph=True)
    for ours, theirs in zip(gradients(model), plain):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2


def test_losses_of_logits_far_from_zero():
    """Those of OpenAI's GPT-2 lie around -110, which the softmax does not see, and bfloat16 rounds to halves."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 24, generator=generator), torch.randn(V, 24, generator=generator)
    x[:, 0], weight[:, 0] = -11, 10
    targets = torch.randint(V, (64,), generator=generator)
    exact = F.cross_entropy(x.double() @ weight.double().T, targets, reduction="none")
    with torch.autocast("cpu", torch.bfloat16):
        assert (cross_entropies(x, weight, targets) - exact).abs().max() < 1e-4


@pytest.fixture
def group_of_one():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_several_processes_leave_the_graphs_whole(group_of_one):
    """Buckets of a kilobyte would cut the block's into pieces."""
    model = lively("cable")
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model.compile(backend=counter)
    tokens = torch.randint(V, (2, 8))
    torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)(tokens, tokens).backward()
    assert counter.frame_count == 2


SUMS = torch.ops.posenc.running_sum.default, {torch.ops.aten.cumsum.default}
CIRCLE = torch.ops.posenc.circle.default, {torch.ops.aten.sin.default, torch.ops.aten.cos.default}


@pytest.mark.parametrize(
    "pe, operator, others",
    [
        *((pe, *SUMS) for pe in ("cable", "cable-nw", "k-cable", "fox", "rope+cable", "cope")),
        *((pe, *CIRCLE) for pe in ("rope", "yarn", "rope+cable")),
    ],
)
def test_compilers_leave_what_is_an_operator_alone(pe, operator, others):
    """Sums: on a GPU inductor's own would be other bits each time, and torch 2.11 fails over them. Sines: it would work out one for each
    number that they turn."""
    targets = []

    def look(graph, inputs):
        targets.extend(node.target for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    model = lively(pe)
    model.compile(backend=backend, fullgraph=True)
    gradients(model)
    assert operator in targets and others.isdisjoint(targets)


def test_flops_are_those_of_the_matrix_products():
    """6 N + 12 L C T a token, against torch's own count of a forward and backward pass; N counts 2 flops, 3 times, a weight."""
    from torch.utils.flop_counter import FlopCounterMode

    model = make("nope", attention="dense", n_embd=48, block_size=64)
    tokens = torch.randint(V, (1, 64))
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    recomputed = (
        2 * 2 * 48 * 64
    )  # the logits of attention, by the dense path's checkpoints: 2 C T a layer
    assert counter.get_total_flops() / 64 == 6 * matrices + 12 * 2 * 48 * 64 + recomputed
    assert model.flops_per_token(64) == 6 * model.parameter_count() + 12 * 2 * 48 * 64


def read_in_chunks(model, tokens, chunk, capacity):
    cache = Cache(model, capacity)
    with torch.no_grad():
        return torch.cat([model(part, cache=cache) for part in tokens.split(chunk, 1)], 1)


def lively(pe, **settings):
    """A model whose attention and encoding matter: weights far from their small start."""
    model = make(pe, block_size=100, **settings)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "wte" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("path", ["auto", "dense"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_cached_logits_are_those_of_one_pass(pe, path, chunk):
    model = lively(pe, attention=path)
    tokens = torch.randint(V, (2, 90))
    assert_close(
        read_in_chunks(model, tokens, chunk, capacity=100), model(tokens), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_cached_logits_in_bfloat16_are_as_good_as_those_of_the_dense_path(pe, chunk):
    """Errors against float32, over all logits; each path rounds at other places, so they are compared as a whole."""
    model, tokens = lively(pe), torch.randint(V, (2, 90))
    dense = lively(pe, attention="dense")
    dense.load_state_dict(model.state_dict())
    with torch.no_grad():
        exact = dense(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            errors = [
                (logits.float() - exact).norm().item()
                for logits in (read_in_chunks(model, tokens, chunk, capacity=90), dense(tokens))
            ]
    assert errors[0] <= 1.25 * errors[1], errors


@pytest.mark.parametrize("pe", ENCODINGS)
def test_decoding_in_fixed_shapes_compiles_once(pe):
    """One graph without breaks for all steps, and the logits of one pass."""
    torch._dynamo.reset()
    compilations = CompileCounter()
    model, tokens = lively(pe), torch.randint(V, (2, 50))
    cache = Cache(model, 70)
    decode = torch.compile(model.decode, fullgraph=True, backend=compilations)
    with torch.no_grad():
        model(tokens[:, :30], cache=cache)
        cache.fix_shapes()
        logits = [decode(tokens[:, i, None], cache) for i in range(30, 50)]
        assert_close(torch.stack(logits, 1), model(tokens)[:, 30:], rtol=0, atol=1e-4)
    assert compilations.frame_count == 1


def test_cache_is_allocated_once():
    model, cache = make("rope+cable"), None
    cache = Cache(model, 50)
    with torch.no_grad():
        model(torch.randint(V, (1, 10)), cache=cache)
        before = [buffer.data_ptr() for layer in cache.layers for buffer in layer.buffers]
        for _ in range(40):
            model(torch.randint(V, (1, 1)), cache=cache)
        assert [
            buffer.data_ptr() for layer in cache.layers for buffer in layer.buffers
        ] == before and cache.length == 50
        with pytest.raises(AssertionError):
            model(torch.randint(V, (1, 1)), cache=cache)


def test_losses_are_the_loss_token_by_token(monkeypatch):
    monkeypatch.setattr("model.LOGITS_CHUNK", 5 * V)
    model, tokens = make("cable"), torch.randint(V, (3, 17))
    losses = model.losses(tokens[:, :-1], tokens[:, 1:])
    assert losses.shape == (3, 16)
    assert_close(losses.mean(), model(tokens[:, :-1], tokens[:, 1:]))
    assert_close(losses[1, 3], -model(tokens[:, :-1])[1, 3].log_softmax(-1)[tokens[1, 4]])


@pytest.mark.parametrize(
    "pe, undecayed", [("nope", 0), ("cable", 0), ("learnable", 0), ("test-drift", 2)]
)
def test_decay_is_for_matrices_of_linear_and_embedding_only(pe, undecayed):
    model = make(pe)
    decay, rest = model.parameter_groups(0.1)
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0)
    assert len(decay["params"]) + len(rest["params"]) == len(list(model.parameters()))
    assert all(p.ndim == 2 for p in decay["params"]) and all(p.ndim == 1 for p in rest["params"])
    gates = {"cable": 2 * 2, "learnable": 1, "test-drift": 2}.get(
        pe, 0
    )  # matrices of the encodings
    assert len(decay["params"]) == 1 + 2 * 4 + gates
    biases = 2 * 4 + {"cable": 2 * 2, "test-drift": 2}.get(pe, 0)
    assert len(rest["params"]) == biases + 2 * (2 * 2 + 1) + undecayed


def test_starting_weights_are_those_of_the_table():
    model = make("cable", n_embd=384, n_head=6, n_layer=8)
    assert_close(model.wte.weight.std(), torch.tensor(0.02), rtol=0.02, atol=0)
    assert_close(model.posenc[0].step.weight.std(), torch.tensor(0.02), rtol=0.1, atol=0)
    assert_close(model.h[3].mlp.c_fc.weight.std(), torch.tensor(0.02), rtol=0.02, atol=0)
    assert_close(model.h[3].mlp.c_proj.weight.std(), torch.tensor(0.02 / 4), rtol=0.02, atol=0)
    assert all(
        not m.bias.any()
        for m in model.modules()
        if isinstance(m, torch.nn.Linear | torch.nn.LayerNorm)
    )
    tokens = torch.randint(V, (4, 32))
    assert abs(model(tokens, tokens.roll(1)).item() - math.log(V)) < 0.2


@pytest.mark.parametrize(
    "size, millions", [("small", 124.4), ("medium", 354.8), ("large", 774.0), ("xl", 1557.6)]
)
def test_sizes_are_those_of_gpt2(size, millions):
    with torch.device("meta"):
        model = GPT(GPTConfig(size=size, pe="learnable", vocab_size=50257))
    assert abs(model.parameter_count() / 1e6 - millions) < 0.1


@pytest.mark.parametrize(
    "settings, problem",
    [
        (
            {"size": "huge"},
            "unknown size 'huge': use one of quickstart tiny small medium large xl",
        ),
        (
            {"n_embd": 100, "n_head": 8},
            "n_embd 100 gives each of 8 heads 12.5 columns, which must be an even number: use a multiple of 16 as n_embd",
        ),
        ({"pe": "cabel"}, "unknown positional encoding 'cabel': did you mean cable"),
        ({"n_layer": -1}, "n_layer is -1: it must be at least 1"),
    ],
)
def test_wrong_settings_are_told_in_one_line(settings, problem):
    with pytest.raises(InputError) as error:
        GPTConfig(**settings)
    assert len(error.value.problems) == 1 and problem in error.value.problems[0]


def test_all_problems_are_told_together():
    with pytest.raises(InputError) as error:
        GPTConfig(n_embd=100, n_head=8, pe="kable", block_size=0)
    assert len(error.value.problems) == 3


def test_attn_scale():
    model, tokens = make("nope"), torch.randint(V, (1, 9))
    same = make("nope", attn_scale=8**-0.5)  # the default: one over the root of the head size
    other = make("nope", attn_scale=1.0)
    assert torch.equal(model(tokens), same(tokens))
    assert not torch.equal(model(tokens), other(tokens))


def test_sizes_have_whole_heads():
    assert all(width % heads == 0 for _, heads, width in SIZES.values())
    assert (SIZES["tiny"], SIZES["quickstart"]) == ((6, 8, 512), (4, 4, 128))
