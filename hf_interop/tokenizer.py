"""Tokenizers of transformers with the tokens of text_data/tokenizer.py."""

import json
import re
from typing import Any

from errors import InputError
from text_data.tokenizer import (
    END_OF_TEXT,
    SETTINGS_FILE,
    HuggingFaceTokenizer,
    TiktokenTokenizer,
    Tokenizer,
)

MASK = "<|mask|>"


def build_tokenizer(tokenizer: Tokenizer, has_mask: bool = False):
    """Return a tokenizer of transformers, which adds no tokens to a text.

    has_mask: add <|mask|> after the last token, as data_loader.py does.
    """
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    special: dict[str, str] = dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        settings = json.loads(tokenizer.files[SETTINGS_FILE])
        special = {key: x for key, x in settings.items() if key.endswith("_token")}
        # A copy, in which names of special tokens are not plain text.
        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    else:
        assert isinstance(tokenizer, TiktokenTokenizer)
        backend = _backend_of(tokenizer.encoding)
    if len(set(special.values())) == 1:  # no names but EOS: of this repository
        # Collators give padding no loss, so that a model whose padding is EOS never learns to stop.
        special.pop("pad_token", None)
    if has_mask:
        backend.add_special_tokens([MASK])
        if backend.token_to_id(MASK) != tokenizer.vocab_size:
            raise InputError(
                f"the tokenizer {tokenizer.name} has its own {MASK}, or ids without tokens, so an "
                "encoder cannot be exported with it: train with another tokenizer"
            )
        special["mask_token"] = MASK
        special.setdefault("pad_token", str(backend.id_to_token(tokenizer.eot)))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )


def _backend_of(encoding):
    """Return a tokenizers.Tokenizer with the tokens of a tiktoken.Encoding."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    special = {name.encode(): token for name, token in encoding._special_tokens.items()}
    names = sorted(encoding._special_tokens, key=encoding._special_tokens.get)
    ranks, pattern = encoding._mergeable_ranks | special, _oniguruma(encoding._pat_str)
    converter: Any = TikTokenConverter(ranks, pattern, extra_special_tokens=names)
    converter.load_tiktoken_bpe = dict  # instead of the function that reads a file
    return converter.converted()


def _oniguruma(pattern: str) -> str:
    """Return a regular expression of tiktoken in the syntax of `tokenizers`.

    There, {1,3}+ is not possessive, and (?s) is (?m).
    """
    return re.sub(r"(\{\d+,\d*\})\+", r"\1", pattern).replace("(?s)", "(?m)")
