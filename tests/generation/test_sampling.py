"""Generation: greedy decoding, batches, long contexts, distributions, and sample.py."""

import copy
import functools
import io

import numpy as np
import pytest
import torch
from conftest import KINDS, LIMITED

import attention
import sample
from generation import sampling
from kv_cache import Cache
from text_data.tokenizer import load_tokenizer
from training import checkpoints

CPU = torch.device("cpu")
END = 256  # the byte tokenizer's end of a document


def generate_tokens(model, prompts, **settings):
    """The new tokens of each prompt."""
    config = sampling.SamplingConfig(**settings)
    rows = [[] for _ in prompts]
    for new_tokens in sampling.generate(model, prompts, config, END, CPU, torch.float32):
        for row, token in new_tokens.items():
            rows[row].append(token)
    return rows


def greedy_tokens(model, prompt, count):
    """Greedy decoding without a cache: one forward pass over the whole text for each token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1, :257].argmax()))
        if tokens[-1] == END:
            return tokens[len(prompt) : -1]
    return tokens[len(prompt) :]


@pytest.fixture
def model(lively):
    """model("cable"): a model whose most likely tokens vary and are far from ties."""

    def load(pe):
        loaded = checkpoints.load_model(lively(pe), CPU)[0]
        loaded.set_vocabulary(257)
        return loaded

    return load


@pytest.mark.parametrize("pe", [pe for pe in KINDS if pe not in LIMITED])
def test_temperature_zero_is_greedy_decoding(pe, model):
    prompt = [END, *b"1: line 7"]
    expected = greedy_tokens(model(pe), prompt, 40)  # far beyond the training length of 16
    assert generate_tokens(model(pe), [prompt], temperature=0, max_new_tokens=40) == [expected]


def test_a_full_context_restarts_from_its_second_half(model):
    """learnable supports 16 positions: when they are full, the last 8 tokens are the new start."""
    learnable, prompt = model("learnable"), [END, *b"1: line 7"]
    tokens, start = list(prompt), 0
    for _ in range(30):
        if len(tokens) - start > 16:
            start = len(tokens) - 8
        tokens.append(int(learnable(torch.tensor([tokens[start:]]))[0, -1, :257].argmax()))
    settings = {"temperature": 0, "max_new_tokens": 30}
    assert generate_tokens(learnable, [prompt], **settings) == [tokens[len(prompt) :]]
    long_prompt = prompt * 5
    assert len(generate_tokens(learnable, [long_prompt], **settings)[0]) == 30


@pytest.mark.parametrize("pe", ["cable", "rope", "learnable", "kerple", "dape+kerple"])
def test_weights_by_columns_give_the_same_tokens(pe, model):
    prompt = [END, *b"1: line"]
    expected = greedy_tokens(model(pe), prompt, 8)
    prepared = model(pe)
    sampling.prepare_generation(prepared, torch.float32)
    assert not prepared.h[0].mlp.c_fc.weight.is_contiguous()
    assert prepared.h[0].mlp.c_proj.weight.is_contiguous()
    assert generate_tokens(prepared, [prompt], temperature=0, max_new_tokens=8) == [expected]


@pytest.mark.parametrize("pe", ["cable", "rope", "learnable", "kerple", "dape+kerple"])
def test_generation_in_bfloat16_is_as_exact_as_one_dense_pass(pe, model):
    """Cached logits of cast weights, against float32 arithmetic with the same weights."""
    cast, exact, tokens = model(pe), model(pe), torch.randint(257, (2, 16))
    sampling.prepare_generation(cast, torch.bfloat16)
    exact.load_state_dict(cast.state_dict())
    dense = copy.deepcopy(cast)
    dense.attention_paths = (attention.DENSE,) * len(dense.h)
    cache = Cache(cast, 16)
    with torch.inference_mode():
        expected = exact(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            dense_error = (dense(tokens).float() - expected).norm()
            parts = (tokens[:, :5], tokens[:, 5:9], *tokens[:, 9:].split(1, 1))
            cached = torch.cat([cast(part, cache=cache) for part in parts], 1)
    assert (cached.float() - expected).norm() < 1.25 * dense_error


@pytest.mark.parametrize("pe", ["cable", "rope", "learnable", "fire"])
def test_cast_blocks_change_no_loss(pe, model):
    """Autocast casts the same weights, at every call."""
    cast, tokens = model(pe), torch.randint(257, (2, 16))
    checkpoints.cast_blocks(cast, torch.bfloat16)
    assert cast.h[0].attn.c_attn.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(pe).loss(tokens, tokens, reduction="none")
        assert torch.equal(cast.loss(tokens, tokens, reduction="none"), expected)
    assert expected.dtype == torch.float32


@pytest.mark.parametrize("name, value", [("GROWTH", 1), ("CACHE_CHUNK", 4)])
def test_buffers_and_chunks_change_nothing(name, value, model, monkeypatch):
    """The buffer of the texts grows; a long prompt is read in chunks."""
    cable, prompts = model("cable"), [[END, *b"1: line 7 of 49. 2: l"], [END]]
    expected = generate_tokens(cable, prompts, temperature=0, max_new_tokens=20)
    monkeypatch.setattr(sampling, name, value)
    assert generate_tokens(cable, prompts, temperature=0, max_new_tokens=20) == expected


def test_each_row_ends_after_its_new_tokens(model):
    prompts = [[END, *b"12: l"], [END], [END, *b"1: line 7 of 49."]]
    for count in (0, 1):
        rows = generate_tokens(model("cable"), prompts, max_new_tokens=count)
        assert [len(row) for row in rows] == [count] * 3


@pytest.mark.parametrize("pe", ["cable", "rope+fox", "kerple"])
def test_a_batch_equals_each_prompt_alone(pe, model):
    prompts = [[END, *b"12: l"], [END], [END, *b"1: line 7 of 49."]]
    batch = generate_tokens(model(pe), prompts, temperature=0, max_new_tokens=20)
    assert batch == [greedy_tokens(model(pe), prompt, 20) for prompt in prompts]


# learnable restarts its context more than once
@pytest.mark.parametrize("pe", ["rope+cable", "learnable"])
def test_compiled_generation_gives_the_same_tokens(pe, model, monkeypatch):
    prompts = [[END, *b"12: l"], [END, *b"1: line"]]
    settings = {"temperature": 0, "max_new_tokens": 40}
    expected = generate_tokens(model(pe), prompts, **settings)
    eager = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", eager)
    assert generate_tokens(model(pe), prompts, **settings, compile=True) == expected


def sampled_fractions(logits, **settings):
    """The frequency of each token in 20,000 samples from one row of logits."""
    config, generator = sampling.SamplingConfig(**settings), torch.Generator().manual_seed(0)
    rows = torch.tensor(logits.astype(np.float32)).expand(20_000, -1)
    tokens = sampling.sample_token(rows, config, generator)
    return torch.bincount(tokens, minlength=len(logits)).numpy() / 20_000


LOGITS = np.log([0.1, 0.4, 0.2, 0.3])


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"temperature": 1}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, np.square([0.1, 0.4, 0.2, 0.3]) / 0.3),
        ({"temperature": 1, "top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1, "top_k": 10}, [0.1, 0.4, 0.2, 0.3]),
        # 0.4 is less than 0.5; 0.4 + 0.3 is enough.
        ({"temperature": 1, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1, "top_p": 0.0}, [0, 1, 0, 0]),
        # top_p applies to the 0.9 that top_k leaves: 0.8 of it is more than 0.4 + 0.3, ...
        ({"temperature": 1, "top_k": 3, "top_p": 0.8}, [0, 4 / 9, 2 / 9, 3 / 9]),
        # ... and 0.77 of it is less.
        ({"temperature": 1, "top_k": 3, "top_p": 0.77}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 0}, [0, 1, 0, 0]),
        *(({"temperature": low}, [0, 1, 0, 0]) for low in (1e-6, 1e-37, 1e-40, 1e-300)),
    ],
)
def test_samples_follow_the_distribution(settings, expected):
    fractions = sampled_fractions(LOGITS, **settings)
    assert np.abs(fractions - expected).max() < 0.012  # three standard errors


def test_the_end_token_finishes_a_row(model):
    cable = model("cable")
    # The end token is the most likely one wherever the mean of the last LayerNorm is positive.
    cable.wte.weight.data[END] = 100 * cable.ln_f.weight.data
    cable.ln_f.bias.data.fill_(1)
    prompts = [[END], [END, 65]]
    assert generate_tokens(cable, prompts, temperature=0, max_new_tokens=20) == [[], []]


def test_padding_of_the_vocabulary_is_never_sampled(model, trained):
    cable, checkpoint = model("cable"), checkpoints.load_checkpoint(trained("cable"))
    assert checkpoint["gpt"]["vocab_size"] == 320
    assert load_tokenizer("bytes").vocab_size == 257
    cable.wte.weight.data[257:] = 100 * cable.ln_f.weight.data  # the highest logits of all
    cable.ln_f.bias.data.fill_(1)
    (tokens,) = generate_tokens(cable, [[END]], max_new_tokens=20)
    assert max(tokens, default=0) < 257


# sample.py


def generate_text(capsys, *flags):
    capsys.readouterr()
    sample.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])
    return capsys.readouterr().out.split("\n", 1)[1]  # the first line names the device


def test_interactive_mode_asks_until_the_end_of_input(trained, capsys, monkeypatch, refused):
    """With LC_ALL=C, Python reads bytes that are no UTF-8, caf\\xe9, as a surrogate."""
    monkeypatch.setattr("sys.stdin", io.StringIO("1: line\n2\n"))
    out = generate_text(capsys, trained("cable"), "--interactive", "--max_new_tokens", 3)
    assert out.count("prompt> ") == 3 and "1: line" in out and "\n" in out
    monkeypatch.setattr("sys.stdin", io.StringIO("caf\udce9\n"))
    (line,) = refused(sample.main, trained("cable"), "--interactive")
    assert "the prompt is not UTF-8" in line and line.endswith("type another")


def test_a_text_beyond_the_longest_context_is_noted(trained, capsys):
    for pe, new, noted in (("learnable", 16, True), ("learnable", 15, False), ("cable", 99, False)):
        sample.main([str(trained(pe)), "--max_new_tokens", str(new), "--device", "cpu"])
        note = "note: learnable supports at most 16 positions: beyond them, each token follows"
        assert (note in capsys.readouterr().err) == noted


def test_characters_of_several_bytes_are_printed_whole(trained, capsys, monkeypatch):
    tokens = "é😀".encode()
    models = []

    def generate(model, *_):
        models.append(model)
        return iter({0: byte} for byte in tokens)

    monkeypatch.setattr(sample, "generate", generate)
    assert generate_text(capsys, trained("cable")) == "é😀\n"
    assert models[0].token_count == 257  # without padding of the vocabulary


def test_prompts_of_a_file_and_several_samples(trained, tmp_path, capsys, refused):
    """A line is a prompt; each sample has the seed of the one-prompt call."""
    (tmp_path / "prompts.txt").write_text("def\n\nclass\n")
    flags = [trained("cable"), "--max_new_tokens", 8, "--temperature", 1]
    found = generate_text(capsys, *flags, "--prompt_file", tmp_path / "prompts.txt", "--samples", 2)
    expected = [
        generate_text(capsys, *flags, "--prompt", prompt, "--seed", seed)
        for prompt in ("def", "class")
        for seed in (1, 2)
    ]
    assert found == "".join(expected) and len(set(expected)) == 4
    (tmp_path / "empty.txt").write_text("\n")
    (line,) = refused(sample.main, *flags, "--prompt_file", tmp_path / "empty.txt")
    assert "has no prompts: write one per line" in line
