"""Tests of the llama block: grouped keys with every kind of hook, paths, cache, output layer."""

import pytest
import torch

from errors import InputError
from evaluation import model_checks
from kv_cache import Cache
from model import GPT, GPTConfig

SHAPE = {"block": "llama", "n_head": 4, "n_embd": 64, "vocab_size": 64, "block_size": 40}
# Each hook, alone and joined, with features that heads share or not.
ENCODINGS = [
    *("nope", "learnable", "rope", "rope:heads=2", "carope", "pope", "cable", "alibi", "t5"),
    *("fire", "cope", "path", "wall", "rope+cable", "rope+sink", "window:w=8+rope"),
]


def make_model(pe: str, **settings) -> GPT:
    """Return a float64 model whose parameters are all random."""
    model = model_checks.make_model(pe, **(SHAPE | settings)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.clamp_parameters_()
    return model


def tokens(count: int = 40) -> torch.Tensor:
    return torch.randint(SHAPE["vocab_size"], (2, count), generator=torch.manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("pe", ENCODINGS)
def test_shared_keys_equal_repeated_keys(pe):
    """Grouped-query attention is attention whose heads have equal keys and values."""
    grouped = make_model(pe, n_kv_head=2, qkv_bias=True)
    full = make_model(pe, qkv_bias=True)
    weights = grouped.state_dict()
    for name in [name for name in weights if "c_attn" in name]:
        q, k, v = weights[name].unflatten(0, (-1, 16)).split([4, 2, 2])
        weights[name] = torch.cat([q, *(x[[0, 0, 1, 1]] for x in (k, v))]).flatten(0, 1)
    full.load_state_dict(weights)
    torch.testing.assert_close(grouped(tokens()), full(tokens()), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("pe", ENCODINGS)
def test_paths_and_cache_equal_the_dense_path(pe):
    model = make_model(pe, n_kv_head=2)
    assert model.h[0].attn.c_attn.out_features == (4 + 2 * 2) * 16
    expected = make_model(pe, n_kv_head=2, attention="dense")(tokens())
    cache = Cache(model, capacity=40)
    pieces = tokens().split([20, 1, 1, 18], 1)
    cached = torch.cat([model(piece, cache=cache) for piece in pieces], 1)
    for logits in (model(tokens()), cached):
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=1e-5)


def test_a_key_that_heads_share_is_cached_once():
    model = make_model("rope", n_kv_head=1)
    cache = Cache(model, capacity=40)
    with torch.no_grad():
        model(tokens(), cache=cache)
    assert [x.size(1) for x in cache.layers[0].buffers] == [1, 1]


@torch.no_grad()
def test_output_layer_of_its_own():
    model = make_model("rope", tied=False)
    hidden = model.hidden(tokens())
    assert torch.equal(model(tokens()), hidden @ model.lm_head.weight.T)
    loss = torch.nn.functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    torch.testing.assert_close(model(tokens(), tokens()).double(), loss, rtol=0, atol=1e-6)
    # The embedding is looked up, not multiplied.
    table = model.wte.weight.numel()
    assert model.flops_per_token(8) == 6 * (model.parameter_count() - table) + 12 * 2 * 64 * 8


def test_the_mlp_is_as_large_as_that_of_gpt2():
    config = GPTConfig(size="small", block="llama")
    assert (config.n_inner, config.head_dim, config.qk_norm) == (2048, 64, True)
    with torch.device("meta"):
        ours = sum(x.numel() for x in GPT(config).h[0].mlp.parameters())
    assert ours == 2 * 4 * 768 * 768


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": "lama"}, "unknown block 'lama': use one of gpt2 llama"),
        ({"n_kv_head": 3}, "n_kv_head is 3: it must divide 4 heads"),
        ({"head_dim": 32, "pe": "pope"}, "pope needs heads of n_embd / n_head columns, not 32"),
    ],
)
def test_wrong_shapes_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        GPTConfig(**(SHAPE | settings))
