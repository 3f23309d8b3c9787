"""Tokenizers of transformers with the tokens of a tiktoken tokenizer."""


def build_tokenizer(tokenizer, has_mask: bool = False):
    """Return transformers' GPT-2 tokenizer with the tokens and merges of one of tiktoken.

    tokenizer: a tiktoken.Encoding.
    has_mask: add <|mask|>, with the number after the last token of the vocabulary, as
    text_data/data_loader.py uses it.
    """
    from transformers import GPT2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    ranks = {
        tokenizer.decode_single_token_bytes(token): token for token in range(tokenizer.eot_token)
    }
    printable = bytes_to_unicode()  # GPT-2's tokenizer stores bytes as printable characters

    def text(token: bytes) -> str:
        return "".join(printable[byte] for byte in token)

    merges = []
    for token in ranks:
        if len(token) > 1:
            left, right = merged_pair(token, ranks)
            merges.append((text(left), text(right)))
    vocabulary = {text(token): rank for token, rank in ranks.items()}
    vocabulary["<|endoftext|>"] = tokenizer.eot_token
    special = {"pad_token": "<|endoftext|>"}
    if has_mask:
        special["mask_token"] = "<|mask|>"
        vocabulary["<|mask|>"] = tokenizer.n_vocab
    return GPT2Tokenizer(vocab=vocabulary, merges=merges, **special)


def merged_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens whose merge makes this one.

    They are what byte-pair encoding reaches with the merges before it.
    """
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pair_ranks = [ranks.get(parts[i] + parts[i + 1], len(ranks)) for i in range(len(parts) - 1)]
        first = pair_ranks.index(min(pair_ranks))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]
