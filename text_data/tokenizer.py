"""Tokenizers: bytes, tiktoken's, Hugging Face's, and trained byte-level BPE.

    tokenizer = load_tokenizer("gpt2")
    tokenizer.encode("<|endoftext|> is plain text here")  # list of token ids
    decoder = tokenizer.incremental_decoder()  # of generated tokens

`run_tokenizer` returns the tokenizer of a trained model.

Data sets and checkpoints store a tokenizer's name: bytes, gpt2, cl100k_base, hf:NAME@HASH or
bpe:4096@HASH. The hash is that of tokenizer.json, stored next to the shards and in each run's
folder.
"""

import codecs
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from runtime.files import read_json, run_folder_of, working_folder_of

import numpy as np

from errors import InputError, refusing

GPT2_VOCABULARY = 50257
GPT2_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"  # encoder.json
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
HASH_DIGITS = 12
BPE_CHARACTERS = 500_000_000  # of the training text that a BPE is trained on
LONGEST_WORD = 1024  # bytes of a word that BPE is trained on
COPY_FILES = "copy it from the data set or another run with this tokenizer"
# Encoded and decoded again, to find tokenizers that lose characters.
SAMPLE = "Naïve text,\r\n\twith  spaces,\n中文 and 😀. "
BPE_VOCABULARIES = range(257, 10**6 + 1)  # at least the bytes and <|endoftext|>


class Tokenizer:
    """Interface of all tokenizers.

    vocab_size: the highest token id + 1. eot: the token at the start of each document. files: to
    store with data sets, by name.
    """

    name: str
    vocab_size: int
    eot: int
    files: dict[str, bytes]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; special tokens in it are plain text."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Return the token ids of each text, unsigned integers."""
        raise NotImplementedError

    def decode(self, tokens: list[int], errors: str = "replace") -> str:
        """Return the text; errors: replace incomplete characters, or ignore."""
        raise NotImplementedError

    def incremental_decoder(self, prompt: list[int] | None = None):
        """Return a function of a token that returns the text it completes.

        prompt: the tokens before, on which the space between depends.
        """
        raise NotImplementedError


class TiktokenTokenizer(Tokenizer):
    """A tiktoken.Encoding."""

    def __init__(self, encoding):
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size = encoding.n_vocab
        self.eot = encoding.eot_token
        self.files = {}

    def encode_batch(self, texts):
        if self.name == "bytes":  # a thousand times as fast as tiktoken
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        # tiktoken releases the GIL, so callers use threads.
        encode = self.encoding.encode_to_numpy
        return [encode(text, disallowed_special=()) for text in texts]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for an unused id."""
        try:
            return self.encoding.decode_single_token_bytes(token)
        except KeyError:
            return b""

    def decode(self, tokens, errors="replace"):
        return b"".join(map(self.token_bytes, tokens)).decode(errors=errors)

    def incremental_decoder(self, prompt=None):
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda token: decoder.decode(self.token_bytes(token))


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`; description: unhashed name."""

    def __init__(self, description: str, files: dict[str, bytes]):
        import tokenizers

        corrupt = f"{description}: {TOKENIZER_FILE} or {SETTINGS_FILE} is corrupt"
        with refusing(corrupt, COPY_FILES):  # the library has no type for its errors
            settings = json.loads(files[SETTINGS_FILE])
            # Copies of a model have the same tokenizer.
            settings.pop("name_or_path", None)
            self.backend = tokenizers.Tokenizer.from_buffer(files[TOKENIZER_FILE])
            eot = self.backend.token_to_id(document_token(self.backend, settings))
            if eot is None:
                raise ValueError(f"no {END_OF_TEXT}")
        content = files[TOKENIZER_FILE] + json.dumps(settings, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()
        self.name = f"{description}@{digest[:HASH_DIGITS]}"
        self.files = files
        self.backend.encode_special_tokens = True  # names of special tokens are plain text
        self.eot = eot
        self.vocab_size = max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_backend(cls, description: str, backend, special: dict[str, str]):
        """Return the tokenizer of a tokenizers.Tokenizer.

        special: its bos_token, eos_token, pad_token, …. Adds the token at the start of each
        document if it is missing. No tokens are added to a text; removes padding, truncation and
        dropout.
        """
        start = document_token(backend, special)
        backend.add_special_tokens([start])
        content = json.loads(backend.to_str())
        content |= {"post_processor": None, "truncation": None, "padding": None}
        if "dropout" in content["model"]:
            content["model"]["dropout"] = None
        backend = type(backend).from_str(json.dumps(content))
        settings = {  # with which AutoTokenizer loads the folder
            "name_or_path": description,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": start,
            **special,
            "clean_up_tokenization_spaces": False,
        }
        files = {
            TOKENIZER_FILE: backend.to_str(pretty=True).encode(),
            SETTINGS_FILE: json.dumps(settings, indent=1).encode() + b"\n",
        }
        return cls(description, files)

    def encode_batch(self, texts):
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode(self, tokens, errors="replace"):
        # Incomplete characters are U+FFFD, as those of the text itself.
        text = self.backend.decode(list(tokens), skip_special_tokens=False)
        return text.strip("\ufffd") if errors == "ignore" else text

    def incremental_decoder(self, prompt=None):
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(prompt, skip_special_tokens=False)
        return lambda token: stream.step(self.backend, token) or ""


def document_token(backend, special: dict[str, str]) -> str:
    """Return the token at the start of each document, <|endoftext|> if there is no other."""
    ends = END_OF_TEXT, special.get("eos_token"), special.get("bos_token")
    known = (end for end in ends if end and backend.token_to_id(end) is not None)
    return next(known, END_OF_TEXT)


def load_tokenizer(name: str, folder: str | Path | None = None) -> Tokenizer:
    """Return the tokenizer `name`, as data sets and checkpoints store it.

    folder: of tokenizer.json, for a name with a hash. Raises InputError for an unknown name, a
    missing or changed file, or an unreachable vocabulary.
    """
    import tiktoken

    if "@" in name:
        folder = Path(folder or ".")
        tokenizer = HuggingFaceTokenizer(name.rpartition("@")[0], _read_files(folder))
        if tokenizer.name != name:
            raise InputError(
                f"{folder / TOKENIZER_FILE} or {SETTINGS_FILE} has been changed, it is not the "
                f"tokenizer {name}: "
                f"{COPY_FILES}"
            )
        return tokenizer
    if name == "bytes":
        ranks = {bytes([byte]): byte for byte in range(256)}
        encoding = tiktoken.Encoding(
            name, pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 256}
        )
        return TiktokenTokenizer(encoding)
    names = sorted(tiktoken.list_encoding_names())
    if name not in names:
        raise InputError(
            f"unknown tokenizer '{name}': choose bytes, {', '.join(names)}, bpe:N, "
            "hf:NAME_OR_FOLDER or a data set or run with tokenizer.json"
        )
    # OSError: also of `requests`; ValueError: a proxy's page as file.
    remedy = "connect to the network once, set TIKTOKEN_CACHE_DIR to a folder that has it, or use"
    failure = f"the {name} vocabulary could not be fetched"
    with refusing(failure, f"{remedy} --tokenizer bytes", (OSError, ValueError)):
        return TiktokenTokenizer(tiktoken.get_encoding(name))


def same_tokenizer(first: str, second: str) -> bool:
    """Return whether two names are of one tokenizer: their hashes, if they have any."""
    return first.rpartition("@")[2] == second.rpartition("@")[2]


def make_tokenizer(choice: str, texts) -> Tokenizer:
    """Return the tokenizer that --tokenizer chooses.

    choice: see tokenization.Settings. texts: a function that returns the training text, an iterable
    of strings, for bpe:N.
    """
    kind, colon, rest = choice.partition(":")
    if kind == "bpe" and colon:
        if not re.fullmatch("[0-9]{1,9}", rest) or int(rest) not in BPE_VOCABULARIES:
            raise InputError(
                f"tokenizer {choice}: pass bpe:N with a vocabulary of "
                f"N >= {BPE_VOCABULARIES.start} tokens, at most {BPE_VOCABULARIES[-1]}"
            )
        return train_bpe(int(rest), texts())
    if kind == "hf" and colon:
        return from_hugging_face(rest, rest)
    folder = Path(choice)
    if (folder / SETTINGS_FILE).is_file():
        settings = read_json(folder / SETTINGS_FILE, COPY_FILES, dict)
        description = str(settings.get("name_or_path"))
        if not description.startswith(("bpe:", "hf:")):
            raise InputError(f"{choice} is no data set or run: pass hf:{choice}")
        return HuggingFaceTokenizer(description, _read_files(folder))
    return load_tokenizer(choice)


def is_choice(choice: str, name: str) -> bool:
    """Return whether `choice` can have made a data set's tokenizer `name`."""
    kind, _, rest = choice.partition(":")
    if kind == "hf":
        choice = f"hf:{_short_name(rest)}"
    return choice in (name, name.rpartition("@")[0])


def train_bpe(vocab_size: int, texts) -> HuggingFaceTokenizer:
    """Return a byte-level BPE with this vocabulary, trained on texts.

    It splits text into words as GPT-2 does. The last token is <|endoftext|>. A short text may give
    fewer tokens. Raises InputError if there is no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    pieces = first_characters(iter(texts), BPE_CHARACTERS)
    first = next(pieces, None)
    if first is None:
        raise InputError(f"bpe:{vocab_size}: no text to train on: use another tokenizer")
    print(f"training a tokenizer of {vocab_size:,} tokens on the text")
    backend = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # A merge's time is quadratic in the length of a word, and DNA is one word.
    short_words = [words, pre_tokenizers.FixedLength(LONGEST_WORD)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(short_words)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    backend.train_from_iterator(itertools.chain([first], pieces), trainer)
    backend.pre_tokenizer = words
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    tokenizer = HuggingFaceTokenizer.from_backend(f"bpe:{vocab_size}", backend, special)
    if tokenizer.vocab_size < vocab_size:
        print(f"note: the text gives a vocabulary of only {tokenizer.vocab_size:,} tokens")
    return tokenizer


def first_characters(texts: Iterator[str], limit: int) -> Iterator[str]:
    """Yield texts until they have `limit` characters; leave the others."""
    count = 0
    while count < limit and (text := next(texts, None)) is not None:
        count += len(text)
        yield text


def _short_name(source: str) -> str:
    """Return a local folder's or file's name without path; a hub name as is."""
    return Path(source).resolve().name if Path(source).exists() else source


def from_hugging_face(source: str, name: str) -> HuggingFaceTokenizer:
    """Return the tokenizer of a folder, tokenizer.json, GGUF, or hub model.

    name: of the model, for the name of the tokenizer and messages.
    """
    import transformers  # its import is not one of the errors of a model

    description = f"hf:{_short_name(name)}"
    remedy = "pass a folder with tokenizer.json, or the name of a model on the hub and connect to"
    path = Path(source)
    if source.startswith((".", "/")) and not path.exists():
        raise InputError(f"{source} does not exist{working_folder_of(source)}: pass another folder")
    with refusing(f"tokenizer hf:{name} cannot be loaded", f"{remedy} the network"):
        load = transformers.AutoTokenizer.from_pretrained
        if path.suffix == ".gguf":
            loaded = load(path.parent, gguf_file=path.name)
        elif path.is_file():
            loaded = transformers.PreTrainedTokenizerFast(tokenizer_file=source)
        else:
            # Some of Mistral's files split text wrongly; transformers finds and repairs them.
            loaded = load(source, trust_remote_code=False, fix_mistral_regex=True)
        backend = loaded.backend_tokenizer  # of fast tokenizers
        if not (known := backend.get_vocab(with_added_tokens=False)):
            raise ValueError("its files have no tokens")
    if path.suffix == ".gguf":  # transformers adds <|endoftext|>, which the model lacks
        content = json.loads(backend.to_str())
        added = content["added_tokens"]
        content["added_tokens"] = [token for token in added if token["content"] in known]
        backend = type(backend).from_str(json.dumps(content))
    special = {key: x for key, x in loaded.special_tokens_map.items() if isinstance(x, str)}
    tokenizer = HuggingFaceTokenizer.from_backend(description, backend, special)
    if tokenizer.decode(tokenizer.encode(SAMPLE)) != SAMPLE:
        print(
            f"note: the tokenizer {description} does not restore every text: upper case, white "
            "space or rare characters are lost"
        )
    return tokenizer


def is_gpt2(tokenizer: HuggingFaceTokenizer) -> bool:
    """Return whether a tokenizer has the tokens of OpenAI's GPT-2."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    content = json.dumps(dict(sorted(vocabulary.items(), key=lambda item: item[1])))
    return hashlib.sha256(content.encode()).hexdigest() == GPT2_SHA256


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return a stored tokenizer's files; raise InputError if one is missing."""
    with refusing(f"{folder} has no tokenizer", COPY_FILES, OSError):
        return {name: (folder / name).read_bytes() for name in (TOKENIZER_FILE, SETTINGS_FILE)}


def run_tokenizer(run: str | Path, checkpoint: dict) -> Tokenizer:
    """Return a run's tokenizer. Raises InputError as `load_tokenizer` does."""
    name = checkpoint["data"]["tokenizer"]
    folder = run_folder_of(run)
    data = checkpoint["config"].get("data")
    if data and not (folder / TOKENIZER_FILE).exists():
        folder = data
    return load_tokenizer(name, folder)
