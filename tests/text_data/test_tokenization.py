"""The tokenizers."""

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


def test_a_hub_out_of_reach_is_told_with_the_callers_mend():
    with pytest.raises(
        InputError,
        match="^it cannot be fetched from the hub .no way there.: connect and start again, it goes on from what is there; or give a file$",
    ):
        with tokenization.reading("it", "give a file"):
            raise ConnectionError("no way there")
