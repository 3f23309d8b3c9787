"""Tokenizers of transformers that give the same tokens as those of text_data/tokenizer.py."""

import json
import re

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
    """Return a tokenizer of transformers with the tokens of one of ours; it adds none to a text.

    has_mask: add <|mask|>, with the number after the last token, as text_data/data_loader.py does.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return _from_files(tokenizer, has_mask)
    assert isinstance(tokenizer, TiktokenTokenizer)
    return _fast_tokenizer(_backend_of(tokenizer.encoding), tokenizer, END_OF_TEXT, has_mask)


def _from_files(tokenizer: HuggingFaceTokenizer, has_mask: bool):
    from tokenizers import Tokenizer

    end = json.loads(tokenizer.files[SETTINGS_FILE])["eos_token"]
    # A copy, in which the names of special tokens are not plain text.
    backend = Tokenizer.from_str(tokenizer.backend.to_str())
    return _fast_tokenizer(backend, tokenizer, end, has_mask)


def _fast_tokenizer(backend, tokenizer: Tokenizer, end: str, has_mask: bool):
    """Return a PreTrainedTokenizerFast. backend: a tokenizers.Tokenizer without <|mask|>."""
    from transformers import PreTrainedTokenizerFast

    special: dict[str, str] = dict.fromkeys(("bos_token", "eos_token", "pad_token"), end)
    if has_mask:
        backend.add_special_tokens([MASK])
        if backend.token_to_id(MASK) != tokenizer.vocab_size:
            raise InputError(
                f"the tokenizer {tokenizer.name} has its own {MASK}, or ids without tokens, so an "
                "encoder cannot be exported with it: train with another tokenizer"
            )
        special["mask_token"] = MASK
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )


def _backend_of(encoding):
    """Return a tokenizers.Tokenizer with the tokens of a tiktoken.Encoding.

    tiktoken merges the adjacent pair whose result has the lowest rank, whatever its two parts are:
    every way to divide a token into two others is a merge here.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    ranks = encoding._mergeable_ranks
    characters = bytes_to_unicode()

    def text(token: bytes) -> str:
        """Return the characters that GPT-2's tokenizer stores for the bytes of a token."""
        return "".join(characters[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        cuts = range(1, len(token))
        pairs = [(token[:cut], token[cut:]) for cut in cuts]
        pairs = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(text(left), text(right)) for left, right in pairs]
    vocabulary = {text(token): rank for token, rank in ranks.items()}
    special = encoding._special_tokens
    vocabulary |= special
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(_oniguruma(encoding._pat_str)), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(name, special=True) for name in sorted(special, key=special.get)]
    )
    return backend


def _oniguruma(pattern: str) -> str:
    """Return a regular expression of tiktoken in the syntax of `tokenizers`.

    There, {1,3}+ is not possessive, and needs not be where it ends its alternative. (?s) is (?m).
    """
    return re.sub(r"(\{\d+,\d*\})\+", r"\1", pattern).replace("(?s)", "(?m)")
