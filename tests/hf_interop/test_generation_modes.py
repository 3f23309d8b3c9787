"""Caches and generation modes of exported decoders: equal to no cache, or refused in one line."""

import copy
import dataclasses

import pytest
import torch
from conftest import ENCODINGS, KINDS
from transformers import DynamicCache, GenerationConfig, QuantizedCache, StaticCache

from hf_interop.modeling import PosencConfig, PosencForCausalLM, PosencModel
from model import GPTConfig

TOKENS = torch.tensor([[3, *b"12: line 7 of 4"], [5, *b"3: line 9 of 12"]])


def make_model(pe: str, dtype: torch.dtype = torch.float32, **changes) -> PosencForCausalLM:
    """Return an exported decoder with large random weights, whose likeliest tokens are no ties."""
    torch.manual_seed(1)
    shape = {"size": "custom", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64}
    settings = dataclasses.asdict(GPTConfig(pe=pe, vocab_size=257, **(shape | changes)))
    model = PosencForCausalLM(PosencConfig(**settings)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config = GenerationConfig(pad_token_id=256)
    return model.to(dtype)


# Each key of the cache has columns of two heads, whose encodings differ.
GROUPED = {"block": "llama", "n_head": 4, "n_kv_head": 2, "n_embd": 32}
CACHED = [(pe, {}) for pe in ENCODINGS]
CACHED += [(pe, GROUPED) for pe in ("cable", "diet-abs", "path+fox", "wall")]


@pytest.mark.parametrize("pe, changes", CACHED, ids=str)
@torch.no_grad()
def test_every_cache_gives_the_logits_without_a_cache(pe, changes):
    model = make_model(pe, **changes)
    expected = model(TOKENS).logits
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        pieces = TOKENS.split((1, 6, 1, 8), 1)
        parts = [model(part, past_key_values=cache, use_cache=True).logits for part in pieces]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=1e-5)
        assert cache.layers[0].keys.size(1) == changes.get("n_kv_head", 2)


@pytest.mark.parametrize("pe", KINDS)
@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
        {"do_sample": True, "num_return_sequences": 2},
        {"prompt_lookup_num_tokens": 3},
        {"prefill_chunk_size": 5},
        {"guidance_scale": 1.5},
    ],
    ids=str,
)
def test_every_generation_mode_gives_the_text_without_a_cache(pe, mode):
    model, prompt = make_model(pe), TOKENS
    if "prompt_lookup_num_tokens" in mode:
        prompt = TOKENS[:1]
    plain = {"prompt_lookup_num_tokens", "prefill_chunk_size"}
    same = {key: value for key, value in mode.items() if key not in plain}
    texts = []
    for arguments in (mode, same | {"use_cache": False}):
        torch.manual_seed(2)
        texts.append(model.generate(prompt, max_new_tokens=8, **arguments).tolist())
    assert texts[0] == texts[1]


@torch.no_grad()
def test_generation_continues_from_a_cache_with_all_or_only_new_tokens():
    model = make_model("cable")
    expected = model.generate(TOKENS, max_new_tokens=4, use_cache=False)
    for first in (5, 15):
        cache = DynamicCache(config=model.config)
        model(TOKENS[:, :first], past_key_values=cache)
        mask = torch.ones_like(TOKENS)
        for prompt in (TOKENS, TOKENS[:, first:]):
            arguments = {"past_key_values": copy.deepcopy(cache), "attention_mask": mask}
            text = model.generate(prompt, max_new_tokens=4, **arguments)
            assert torch.equal(text[:, -4:], expected[:, -4:])


def test_assisted_decoding_gives_the_text_of_the_model():
    model, assistant = make_model("cable"), make_model("rope")
    expected = model.generate(TOKENS[:1], max_new_tokens=8)
    text = model.generate(TOKENS[:1], max_new_tokens=8, assistant_model=assistant)
    assert torch.equal(text, expected)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_padded_batch_gives_the_texts_of_its_rows(padding):
    model = make_model("cable")
    alone = model.generate(TOKENS[:1, :10], max_new_tokens=4)[:, -4:]
    tokens, mask = TOKENS.clone(), torch.ones_like(TOKENS)
    kept = slice(6, None) if padding == "left" else slice(None, 10)
    mask[0] = 0
    mask[0, kept] = 1
    tokens[0, kept] = TOKENS[0, :10]
    if padding == "right":
        logits = model(tokens, attention_mask=mask).logits[0, 9]
        assert logits.argmax() == alone[0, 0]
        return
    for mode in ({}, {"num_beams": 1, "use_cache": False}):
        text = model.generate(tokens, attention_mask=mask, max_new_tokens=4, **mode)
        assert torch.equal(text[:1, -4:], alone), mode
    with pytest.raises(ValueError, match="pass whole texts and their mask"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=4, prefill_chunk_size=5)


def test_unsupported_caches_are_refused_in_one_line():
    model = make_model("cable")
    config = copy.copy(model.config)
    config.sliding_window, config.layer_types = 8, ["sliding_attention"] * 2
    offloaded = DynamicCache(config=model.config)
    offloaded.offloading = True
    static = StaticCache(config=model.config, max_cache_len=40)
    quantized = QuantizedCache(backend="fp8", config=model.config)
    for cache in (DynamicCache(config=config), static, quantized, offloaded):
        with torch.no_grad(), pytest.raises(ValueError, match="is not supported: use a Dynamic"):
            model(TOKENS, past_key_values=cache)
    with pytest.raises(ValueError, match="StaticCache is not supported: use a DynamicCache"):
        model.generate(TOKENS, max_new_tokens=4, cache_implementation="static")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pe", ["cable", "rope", "fire"])
def test_a_converted_model_keeps_float32_where_it_matters(pe, dtype):
    """After .to(dtype) or .half(), also with a cache."""
    exact = make_model(pe)
    model = copy.deepcopy(exact).to(dtype)
    kept = [p.dtype for name, p in model.named_parameters() if "posenc" in name or ".ln_" in name]
    assert set(kept) == {torch.float32} and model.dtype == dtype
    assert all(map(torch.equal, model.model.posenc.parameters(), exact.model.posenc.parameters()))
    with torch.no_grad():
        expected, logits = exact(TOKENS).logits, model(TOKENS).logits
        assert (logits - expected).abs().max() < 0.1 * expected.abs().max()
        cache = DynamicCache(config=model.config)
        parts = [model(part, past_key_values=cache).logits for part in TOKENS.split((10, 6), 1)]
        assert (torch.cat(parts, 1) - logits).abs().max() < 0.1 * expected.abs().max()
    model(TOKENS, labels=TOKENS).loss.backward()
    assert model.to(torch.float32).model.posenc is not None
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in model.parameters())


@pytest.mark.parametrize("pe", KINDS)
@torch.no_grad()
def test_hidden_states_embeddings_and_positions_are_those_of_transformers(pe):
    model = make_model(pe)
    output = model(TOKENS, output_hidden_states=True)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    embedded = model.get_input_embeddings()(TOKENS)
    pos = torch.arange(16)[None]
    x = model.model.posenc[0].embed(embedded, pos)
    torch.testing.assert_close(output.hidden_states[0], x)
    block, encoding = model.model.h[0], model.model.posenc[0]
    x = block(x, pos, encoding, model.model.attention_paths[0], None, None)
    torch.testing.assert_close(output.hidden_states[1], x)
    torch.testing.assert_close(output.hidden_states[-1], model.model.hidden(TOKENS))
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, output.logits)
    torch.testing.assert_close(model(TOKENS, position_ids=pos).logits, output.logits)
    base = PosencModel(model.config).eval()
    base.load_state_dict(model.state_dict())
    cache = base(TOKENS[:, :9], use_cache=True).past_key_values
    last = base(TOKENS[:, 9:], past_key_values=cache, position_ids=pos[:, 9:])
    torch.testing.assert_close(last.last_hidden_state, output.hidden_states[-1][:, 9:])
    text = model.generate(inputs_embeds=embedded, max_new_tokens=4)
    assert torch.equal(text, model.generate(TOKENS, max_new_tokens=4)[:, -4:])
    arguments = {"return_dict_in_generate": True, "output_hidden_states": True}
    states = model.generate(TOKENS, max_new_tokens=2, **arguments).hidden_states
    torch.testing.assert_close(states[0][-1], output.hidden_states[-1])


@torch.no_grad()
def test_unsupported_arguments_are_refused_in_one_line():
    model, pos = make_model("rope"), torch.arange(16)
    embedded = model.get_input_embeddings()(TOKENS)
    mask = torch.ones_like(TOKENS)
    mask[0, :6] = 0
    padded_positions = (mask.cumsum(1) - 1).clamp(min=0)
    model(TOKENS, attention_mask=mask, position_ids=padded_positions)
    cache = DynamicCache()
    for problem, arguments in {
        "position_ids other than": {"position_ids": pos[None] + 1},
        "position_ids other than 0": {"position_ids": pos[None, :5]},
        "position_ids other than 0, 1": {"position_ids": pos[None], "attention_mask": mask},
        "output_attentions is not supported": {"output_attentions": True},
        "either input_ids or inputs_embeds": {"inputs_embeds": embedded},
        "padding between tokens": {"attention_mask": mask.roll(1, 1)},
        "a padded batch cannot use a cache": {"attention_mask": mask, "past_key_values": cache},
    }.items():
        with pytest.raises(ValueError, match=problem):
            model(TOKENS, **arguments)
    empty = model.get_input_embeddings()(TOKENS[:, :0])
    assert model(inputs_embeds=empty).logits.shape == (2, 0, 257)
    assert model(torch.tensor([[], []])).logits.shape == (2, 0, 257)  # float, as [] is
    with pytest.raises(ValueError, match="output_attentions is not supported"):
        model.generate(TOKENS, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="pass whole texts and their mask"):
        model.generate(inputs_embeds=embedded, attention_mask=mask, max_new_tokens=2)


def test_gradient_checkpointing_recomputes_the_blocks():
    model = make_model("cable").train()
    calls = []
    model.model.h[0].register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for enable in (False, True):
        model.zero_grad()
        calls.clear()
        if enable:
            model.gradient_checkpointing_enable()
        model(TOKENS, labels=TOKENS, output_hidden_states=True).loss.backward()
        assert len(calls) == 1 + enable and model.is_activation_checkpointing == enable
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients))
    model.gradient_checkpointing_disable()
    assert not model.model.activation_checkpointing
