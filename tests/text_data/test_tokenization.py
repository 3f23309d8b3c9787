"""Tests of the tokenizers."""

import pytest

from errors import InputError
from text_data import tokenization


def test_bytes_tokenizer_is_utf8():
    encoding = tokenization.tiktoken_encoding("bytes")
    text = "naïve 😀\n<|endoftext|>"
    assert encoding.encode_ordinary(text) == list(text.encode())
    assert encoding.decode(list(text.encode())) == text
    assert (encoding.n_vocab, encoding.eot_token) == (257, 256)


def test_unknown_tokenizer():
    with pytest.raises(InputError, match="choose bytes or gpt2"):
        tokenization.tiktoken_encoding("gpt3")
