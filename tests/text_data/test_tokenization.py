"""Tests of the tokenizers."""

import pytest

from errors import InputError
from text_data import tokenization


def test_bytes_tokenizer_is_utf8():
    tokenizer = tokenization.load_tokenizer("bytes")
    text = "naïve 😀\n<|endoftext|>"
    assert tokenizer.encode_ordinary(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.n_vocab, tokenizer.eot_token) == (257, 256)


def test_unknown_tokenizer():
    with pytest.raises(InputError, match="choose bytes or gpt2"):
        tokenization.load_tokenizer("gpt3")
