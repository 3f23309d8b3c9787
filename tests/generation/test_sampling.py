"""Continuations: the likeliest tokens, batches that are what each prompt gives alone, choices that follow the distribution."""

import numpy as np
import pytest
import torch
from conftest import ENCODINGS, LIMITED

from generation import sampling
from runtime import checkpoints, loading
from text_data import tokenization

CPU = torch.device("cpu")


def tokens_of(model, prompts, **settings):
    """The new tokens of every prompt."""
    config = sampling.Sampling(**settings)
    rows = [[] for _ in prompts]
    for new in sampling.generate(model, prompts, config, 257, 256, CPU, torch.float32):
        for row, token in new.items():
            rows[row].append(token)
    return rows


def likeliest(model, prompt, count):
    """Greedy decoding by one pass over everything for each token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1, :257].argmax()))
        if tokens[-1] == 256:
            return tokens[len(prompt) : -1]
    return tokens[len(prompt) :]


@pytest.fixture
def model(trained):
    """model("cable"): a trained model whose likeliest tokens are far from a tie and vary."""

    def load(pe):
        model, _ = loading.load_model(trained(pe), CPU)
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.3)
        return model

    return load


@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if pe not in LIMITED])
def test_temperature_zero_takes_the_likeliest_tokens(pe, model):
    prompt = [256, *b"1: line 7"]
    expected = likeliest(model(pe), prompt, 40)  # far beyond the training length of 16
    assert tokens_of(model(pe), [prompt], temperature=0, max_new_tokens=40) == [expected]


def test_a_longest_context_is_read_again_by_halves(model):
    """learnable knows 16 positions: when they are full, the last 8 tokens are the new start."""
    learnable, prompt = model("learnable"), [256, *b"1: line 7"]
    learnable.wte.weight.data[256] = 0  # never the end
    tokens, start = list(prompt), 0
    for _ in range(30):
        if len(tokens) - start > 16:
            start = len(tokens) - 8
        tokens.append(int(learnable(torch.tensor([tokens[start:]]))[0, -1, :257].argmax()))
    assert tokens_of(learnable, [prompt], temperature=0, max_new_tokens=30) == [
        tokens[len(prompt) :]
    ]
    assert len(tokens_of(learnable, [prompt * 5], temperature=0, max_new_tokens=30)[0]) == 30


@pytest.mark.parametrize("pe", ["cable", "rope+fox", "kerple"])
def test_a_batch_is_each_prompt_alone(pe, model):
    prompts = [[256, *b"12: l"], [256], [256, *b"1: line 7 of 49."]]
    together = tokens_of(model(pe), prompts, temperature=0, max_new_tokens=20)
    assert together == [likeliest(model(pe), prompt, 20) for prompt in prompts]


@pytest.mark.parametrize(
    "pe", ["rope+cable", "learnable"]
)  # learnable: read again by halves, more than once
def test_compiled_it_writes_the_same(pe, model, monkeypatch):
    prompts = [[256, *b"12: l"], [256, *b"1: line"]]
    expected = tokens_of(model(pe), prompts, temperature=0, max_new_tokens=40)
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compiled(function, backend="eager", **options)
    )
    assert tokens_of(model(pe), prompts, temperature=0, max_new_tokens=40, compile=True) == expected


def test_long_prompts_are_read_in_pieces(model, monkeypatch):
    prompt = [256, *b"1: line 7 of 49. 2: line 8"]
    whole = tokens_of(model("cable"), [prompt], temperature=0, max_new_tokens=9)
    monkeypatch.setattr(sampling, "READ", 4)
    assert tokens_of(model("cable"), [prompt], temperature=0, max_new_tokens=9) == whole


def drawn(logits, **settings):
    """Shares of the tokens drawn from one row of logits, 20,000 times."""
    config, generator = sampling.Sampling(**settings), torch.Generator().manual_seed(0)
    tokens = sampling.sample_token(torch.tensor(logits).expand(20_000, -1), config, generator)
    return torch.bincount(tokens, minlength=len(logits)).numpy() / 20_000


LOGITS = np.log([0.1, 0.4, 0.2, 0.3])


@pytest.mark.parametrize(
    "settings, shares",
    [
        ({"temperature": 1}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, np.square([0.1, 0.4, 0.2, 0.3]) / 0.3),
        ({"temperature": 1, "top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1, "top_k": 10}, [0.1, 0.4, 0.2, 0.3]),
        (
            {"temperature": 1, "top_p": 0.5},
            [0, 4 / 7, 0, 3 / 7],
        ),  # 0.4 is not enough, with 0.3 it is
        ({"temperature": 1, "top_p": 0.0}, [0, 1, 0, 0]),
        (
            {"temperature": 1, "top_k": 3, "top_p": 0.8},
            [0, 4 / 9, 2 / 9, 3 / 9],
        ),  # the share of what top_k leaves
        (
            {"temperature": 1, "top_k": 3, "top_p": 0.77},
            [0, 4 / 7, 0, 3 / 7],
        ),  # 0.77 of 0.9 is less than 0.4 and 0.3
        ({"temperature": 0}, [0, 1, 0, 0]),
    ],
)
def test_choices_follow_the_distribution(settings, shares):
    assert (
        np.abs(drawn(LOGITS.astype(np.float32), **settings) - shares).max() < 0.012
    )  # three standard errors


def test_a_temperature_by_which_logits_divided_are_infinite():
    assert drawn((LOGITS + 100).astype(np.float32), temperature=1e-37).tolist() == [0, 1, 0, 0]


def test_the_end_of_a_document_ends_it(model):
    cable = model("cable")
    cable.wte.weight.data[256] = (
        100 * cable.ln_f.weight.data
    )  # the likeliest token, wherever the norm's mean is positive
    cable.ln_f.bias.data.fill_(1)
    assert tokens_of(cable, [[256], [256, 65]], temperature=0, max_new_tokens=20) == [[], []]


def test_vocabulary_padding_is_no_token(model, trained):
    cable, checkpoint = model("cable"), checkpoints.load_checkpoint(trained("cable"))
    assert (
        checkpoint["gpt"]["vocab_size"] == 320
        and tokenization.tiktoken_encoding("bytes").n_vocab == 257
    )
    cable.wte.weight.data[257:] = 100 * cable.ln_f.weight.data  # the padding would win every time
    cable.ln_f.bias.data.fill_(1)
    (tokens,) = tokens_of(cable, [[256]], max_new_tokens=20)
    assert max(tokens, default=0) < 257
