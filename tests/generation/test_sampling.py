"""Tests of generation/sampling.py: greedy decoding, batches, long contexts, distributions."""

from runtime import checkpoints, loading

import numpy as np
import pytest
import torch
from conftest import ENCODINGS, LIMITED

from generation import sampling
from text_data.tokenizer import load_tokenizer

CPU = torch.device("cpu")
END = 256  # the byte tokenizer's end of a document


def generate_tokens(model, prompts, **settings):
    """The new tokens of each prompt."""
    config = sampling.SamplingConfig(**settings)
    rows = [[] for _ in prompts]
    for new_tokens in sampling.generate(model, prompts, config, 257, END, CPU, torch.float32):
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
def model(trained):
    """model("cable"): a model whose most likely tokens vary and are far from ties."""

    def load(pe):
        model, _ = loading.load_model(trained(pe), CPU)
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.3)
        return model

    return load


@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if pe not in LIMITED])
def test_temperature_zero_is_greedy_decoding(pe, model):
    prompt = [END, *b"1: line 7"]
    expected = greedy_tokens(model(pe), prompt, 40)  # far beyond the training length of 16
    assert generate_tokens(model(pe), [prompt], temperature=0, max_new_tokens=40) == [expected]


def test_a_full_context_restarts_from_its_second_half(model):
    """learnable supports 16 positions: when they are full, the last 8 tokens are the new start."""
    learnable, prompt = model("learnable"), [END, *b"1: line 7"]
    learnable.wte.weight.data[END] = 0  # the document never ends
    tokens, start = list(prompt), 0
    for _ in range(30):
        if len(tokens) - start > 16:
            start = len(tokens) - 8
        tokens.append(int(learnable(torch.tensor([tokens[start:]]))[0, -1, :257].argmax()))
    settings = {"temperature": 0, "max_new_tokens": 30}
    assert generate_tokens(learnable, [prompt], **settings) == [tokens[len(prompt) :]]
    long_prompt = prompt * 5
    assert len(generate_tokens(learnable, [long_prompt], **settings)[0]) == 30


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
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_(function, backend="eager", **options)
    )
    assert generate_tokens(model(pe), prompts, **settings, compile=True) == expected


def test_long_prompts_are_read_in_chunks(model, monkeypatch):
    prompt = [END, *b"1: line 7 of 49. 2: line 8"]
    settings = {"temperature": 0, "max_new_tokens": 9}
    whole = generate_tokens(model("cable"), [prompt], **settings)
    monkeypatch.setattr(sampling, "CACHE_CHUNK", 4)
    assert generate_tokens(model("cable"), [prompt], **settings) == whole


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
    ],
)
def test_samples_follow_the_distribution(settings, expected):
    fractions = sampled_fractions(LOGITS, **settings)
    assert np.abs(fractions - expected).max() < 0.012  # three standard errors


def test_a_tiny_temperature_does_not_overflow():
    assert sampled_fractions(LOGITS + 100, temperature=1e-37).tolist() == [0, 1, 0, 0]


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
