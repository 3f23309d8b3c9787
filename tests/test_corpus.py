"""The tokenizers."""

import pytest

import corpus
from errors import InputError

def test_bytes_tokenizer_is_utf8():
    encoding = corpus.tiktoken_encoding("bytes")
    text = "naïve 😀\n<|endoftext|>"
    assert encoding.encode_ordinary(text) == list(text.encode())
    assert encoding.decode(list(text.encode())) == text
    assert (encoding.n_vocab, encoding.eot_token) == (257, 256)


def test_unknown_tokenizer():
    with pytest.raises(InputError, match="choose bytes or gpt2"):
        corpus.tiktoken_encoding("gpt3")
