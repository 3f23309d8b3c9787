"""Checks of an encoding in a small GPT: cache, compilation, precision, steps.

See layer_checks.py for what the functions take, yield and raise.
"""

from functools import partial
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from evaluation import layer_checks, runner
from evaluation.checks import Measurements, NotApplicable, check, compare, require, within
from evaluation.layer_checks import difference_error
from generation import sampling
from kv_cache import Cache
from model import GPT, GPTConfig
from pe_spec import layer_specs
from training.optimizer import make_grad_scaler, make_optimizer, optimizer_step

V = 96  # vocabulary
CHUNKS = (1, 7, 40)  # tokens that a KV cache reads at a time
# Encodings that cannot distinguish the order of 20 tokens in one layer.
WITHOUT_ORDER = ("nope", "dape", "ssmax", "logn", "sink")


def make_model(spec: str, **settings) -> GPT:
    """Return a decoder with initial weights, in evaluation mode."""
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 32, "vocab_size": V}
    config = GPTConfig(**{"size": "quickstart", "pe": spec, **shape, **settings})
    config.n_layer = max(config.n_layer, len(layer_specs(spec)))
    return GPT(config).eval()


def make_lively_model(spec: str, **settings) -> GPT:
    """Return a model with large weights: attention and encoding matter."""
    model = make_model(spec, block_size=100, **settings)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "wte" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def training_loss(model: GPT) -> Tensor:
    """Return the loss on fixed tokens."""
    tokens = torch.randint(V, (4, 33), generator=torch.Generator().manual_seed(3))
    return model(tokens[:, :-1], tokens[:, 1:])


def gradients(model: GPT) -> list[Tensor]:
    """Return the training loss and the gradients of all parameters."""
    loss = training_loss(model)
    grads = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return [loss.detach(), *grads]


def read_in_chunks(model: GPT, tokens: Tensor, chunk: int) -> Tensor:
    """Return the logits of tokens (B, T) that are read through a KV cache."""
    cache = Cache(model, tokens.size(1))
    with torch.no_grad():
        return torch.cat([model(part, cache=cache) for part in tokens.split(chunk, 1)], 1)


# Context


@check("causality", path=("auto", "dense"))
def check_causality(spec: str, path: str) -> Measurements:
    """Change or remove later tokens, far beyond the training length of 32.

    Usual cause: a feature depends on later tokens, as x.mean(1) does, or on the text's length: use
    pos, not x.size(1); logits_transform does not use `mask`
    """
    model = make_model(spec, attention=path)
    tokens = torch.randint(V, (2, 150))[:, : model.max_context]
    changed = tokens.clone()
    changed[:, 17:] = (changed[:, 17:] + 1) % V
    logits = model(tokens)
    for length, other in ((17, changed), (1, tokens[:, :1]), (20, tokens[:, :20])):
        what = f"change of the logits of {length} tokens by later ones"
        yield compare(model(other)[:, :length], logits[:, :length], 1e-5, 1e-5, what)
    change = (model(changed)[:, 17:] - logits[:, 17:]).abs().max().item()
    require(change > 1e-3, "logits do not depend on the tokens")


@check("order")
def check_order(spec: str) -> None:
    """Reverse 19 of 20 tokens: the last logits of one layer must change.

    Usual cause: a hook's name is misspelled, or no hook uses pos or sums; what only changes other
    encodings' logits needs one, as in dape+kerple
    """
    if spec in WITHOUT_ORDER:
        raise NotApplicable("does not distinguish the order of tokens in one layer")
    model = make_lively_model(spec, n_layer=1)
    tokens = torch.randint(V, (1, 150))[:, : model.max_context]
    reversed_tokens = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    change = (model(tokens)[:, -1] - model(reversed_tokens)[:, -1]).abs().max().item()
    require(change >= 1e-5, f"the order of tokens changes the logits by {change:.2g} only")


# KV cache


@check("KV cache", path=("auto", "dense"))
def check_cache(spec: str, path: str) -> Measurements:
    """Compare logits of 60 tokens read through a KV cache with one pass.

    Usual cause: features ignore `previous` or `pos`: add previous[0] to cumulative sums, and use
    pos, not torch.arange(T)
    """
    model = make_lively_model(spec, attention=path)
    tokens = torch.randint(V, (2, 60))
    expected = model(tokens)
    for chunk in CHUNKS:
        what = f"error through a cache, chunks of {chunk}"
        yield compare(read_in_chunks(model, tokens, chunk), expected, 1e-4, what=what)


@check("KV cache of a window", window=(1, 9, 200))
def check_cache_window(spec: str, window: int) -> Measurements:
    """Compare losses through a short cache with those of a sliding window.

    Usual cause: the bias of a pair depends on tokens outside the window
    """
    model = make_lively_model(spec)
    tokens = torch.randint(V, (2, 70))
    with mock.patch.object(runner, "CACHE_CHUNK", 16):
        ours = runner.windowed_losses(model, tokens, tokens, window)
    for encoding in model.posenc:
        encoding.window_size = min(window, encoding.window_size or window)
    expected = model.loss(tokens, tokens, reduction="none")
    yield compare(ours, expected, 1e-4, 1e-4, f"error of losses, cache of {window} tokens")


# Compilation and memory


def require_graphs(backend: CompileCounterWithBackend, count: int) -> None:
    """Raise CheckFailed if torch.compile made another number of graphs."""
    require(
        backend.frame_count == count,
        f"torch.compile made {backend.frame_count} graphs instead of {count}: use tensors for "
        "numbers that depend on position or layer",
    )


@check("fixed-shape decoding")
def check_fixed_shapes(spec: str) -> Measurements:
    """Decode 20 tokens with a cache of fixed shapes and one compiled graph.

    Usual cause: .item(), `if` on a tensor, or S, the capacity of the cache
    """
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("eager")
    model = make_lively_model(spec, n_layer=1)
    tokens = torch.randint(V, (2, 50))
    cache = Cache(model, 70)
    decode = torch.compile(sampling.decode, fullgraph=True, backend=backend)
    with torch.no_grad():
        model(tokens[:, :30], cache=cache)
        cache.fix_shapes()
        logits = [decode(model, tokens[:, i, None], cache) for i in range(30, 50)]
        yield compare(torch.stack(logits, 1), model(tokens)[:, 30:], atol=1e-4)
    require_graphs(backend, 1)


@check("one compiled graph")
def check_one_graph(spec: str) -> Measurements:
    """Compile each kind of layer to one graph, and compare with eager mode.

    Usual cause: .item(), numpy, or `if` on a tensor: use torch.where or clamp
    """
    model = make_lively_model(spec)
    plain = gradients(model)
    torch._dynamo.reset()
    # Partitions the graph as inductor does, without its C++ code.
    backend = CompileCounterWithBackend("aot_eager_decomp_partition")
    for block in model.h:
        block.compile(backend=backend, fullgraph=True)
    for ours, theirs in zip(gradients(model), plain, strict=True):
        yield compare(ours, theirs, 1e-5, 1e-4, "error of loss or gradients")
    require_graphs(backend, len(set(layer_specs(spec))))


# Training


@check("bfloat16")
def check_bfloat16(spec: str) -> Measurements:
    """Compare logits in bfloat16 and float32, by norms; also with a KV cache.

    Usual cause: bfloat16 has 8 bits: compute positions and sums in float32
    """
    model = make_lively_model(spec)
    tokens = torch.randint(V, (2, 60))
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = [model(tokens)]
        rounded += [read_in_chunks(model, tokens, chunk) for chunk in CHUNKS]
    whole, *cached = (((x - exact).norm() / exact.norm()).item() for x in rounded)
    yield within(whole, 0.05, "relative error of the logits")
    for error in cached:
        yield within(error / whole, 1.25, "error through a KV cache over that without")


@check("float64", causal=(True, False))
def check_float64(spec: str, causal: bool) -> Measurements:
    """Check a float64 model: logits, KV cache, a finite difference of the loss.

    Usual cause: a hook rounds to float32: use x's dtype, as in pos.to(x.dtype)
    """
    if not causal and not layer_checks.supports_bidirectional(spec):
        raise NotApplicable("supports_bidirectional = False")
    model = make_lively_model(spec, causal=causal)
    tokens = torch.randint(V, (2, 30))
    rounded = model(tokens)
    exact = model.double()(tokens)
    require(exact.dtype == torch.float64, f"logits of a float64 model are {exact.dtype}")
    yield compare(rounded, exact, 1e-4, 1e-4, "error of logits in float32")
    if causal:
        cached = read_in_chunks(model, tokens, 7)
        yield compare(cached, exact, 1e-10, what="error through a KV cache in float64")

    _, *grads = gradients(model)
    loss, parameters = partial(training_loss, model), list(model.parameters())
    differences = [difference_error(loss, parameters, grads, size) for size in (1e-8, 1e-9)]
    # A kink of the loss may be in one of the two intervals.
    yield within(min(differences), 1e-5, "relative error of the loss's derivative")


@check("determinism")
def check_determinism(spec: str) -> None:
    """Repeat loss and gradients with a seed, a state_dict, recomputed blocks.

    Usual cause: a hook keeps something, or draws random numbers that torch does not, or in
    evaluation. Those of __init__ must be a parameter or a buffer
    """
    model = make_lively_model(spec).train()
    other = GPT(model.config).train()  # with other initial values
    other.load_state_dict(model.state_dict())
    other.activation_checkpointing = True
    results = []
    for each in (model, model, other):
        torch.manual_seed(5)
        results.append(gradients(each))
    for result in results[1:]:
        equal = all(map(torch.equal, results[0], result))
        require(equal, "loss or gradients differ with the same seed and weights")
    tokens = torch.randint(V, (2, 32))
    model.eval()
    logits = model(tokens)
    torch.rand(1)
    require(torch.equal(logits, model(tokens)), "evaluation is random")


@check("training")
def check_training(spec: str) -> Measurements:
    """Take 20 optimizer steps on one batch: the loss must fall.

    Usual cause: tokens do not reach the output, or the initial bias is large
    """
    model = make_model(spec, n_layer=1).train()
    optimizer = make_optimizer(model, lr=1e-2)
    scaler = make_grad_scaler(torch.device("cpu"), torch.float32)
    losses = []
    for _ in range(20):
        loss = training_loss(model)
        loss.backward()
        optimizer_step(model, optimizer, scaler)
        losses.append(loss.item())
    ratio = losses[-1] / losses[0]
    yield within(ratio, 0.85, "the loss after 19 steps over that of the first")
