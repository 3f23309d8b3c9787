"""Tests of the tokenizers, compared with the libraries `tokenizers` and `transformers`."""

import json
import random
import shutil
import time

import numpy as np
import pytest
import tiktoken.load
import tiktoken.registry
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import data_loader
import prepare_text
from errors import InputError
from text_data import tokenizer

TEXTS = [f"{n}: The cat sat on a mat {n * n} times, naïve.\r\n\tdef f(x):\n" for n in range(90)]
NASTY = [
    "",
    " ",
    "naïve  é😀中文 \u0301 👩‍👩‍👧 𝒳",
    "CRLF\r\n\r\ntab\t \x01\x02\x7f\x80\xff\ufeff\u2028",
    "in text <|endoftext|> </s> <s> [CLS] <|mask|>",
    " 's'S 12345 \n\n  end ",
    "a" * 300,
]
ALL = [*NASTY, "".join(NASTY)]


def write_sources(folder):
    folder.mkdir()
    for n, text in enumerate([*TEXTS, *NASTY[2:]]):
        (folder / f"{n:03}.txt").write_text(text, newline="")
    return folder


def prepare(*arguments):
    prepare_text.main([str(argument) for argument in arguments])


def check_round_trips(ours):
    """decode(encode(text)) == text, also token by token; names of special tokens are text."""
    for text in ALL:
        tokens = ours.encode(text)
        assert ours.eot not in tokens and max(tokens, default=0) < ours.vocab_size
        assert ours.decode(tokens) == text
        decode = ours.incremental_decoder()
        assert "".join(map(decode, tokens)) == text
    emoji = ours.encode("😀")
    if len(emoji) > 1:
        assert ours.decode(emoji[:-1]).endswith("\ufffd")
        assert ours.decode(emoji[:-1], errors="ignore") == ""


def stored(folder):
    name = json.loads((folder / "meta.json").read_text())["tokenizer"]
    return tokenizer.load_tokenizer(name, folder)


def test_bytes_tokenizer_is_utf8():
    ours = tokenizer.load_tokenizer("bytes")
    text = "naïve 😀\n<|endoftext|>"
    assert ours.encode(text) == list(text.encode())
    assert (ours.vocab_size, ours.eot) == (257, 256)
    check_round_trips(ours)


def test_bpe_is_a_byte_level_bpe_of_the_training_text(tmp_path):
    """The library's own class of byte-level BPE gives the same merges and tokens."""
    sources, out = write_sources(tmp_path / "text"), tmp_path / "out"
    prepare(sources, "--tokenizer", "bpe:400", "--out_dir", out)
    ours = stored(out)
    check_round_trips(ours)
    files = sorted(sources.iterdir())
    train = [path.read_bytes().decode() for n, path in enumerate(files) if n % 20 != 19]
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train_from_iterator(train, vocab_size=399, min_frequency=0, show_progress=False)
    assert all(ours.encode(text) == theirs.encode(text).ids for text in [*TEXTS, *NASTY])
    assert (ours.vocab_size, ours.eot) == (400, 399)
    tokens = np.concatenate([shard[:] for shard in data_loader.Shards(out, "train").tokens])
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [id for text in train for id in [399, *theirs.encode(text).ids]]


def test_tokenizer_of_another_data_set(tmp_path, refused):
    sources = write_sources(tmp_path / "text")
    prepare(sources, "--tokenizer", "bpe:400", "--out_dir", tmp_path / "a")
    (tmp_path / "b.txt").write_text("Another text about cats.\n" * 50)
    flags = [tmp_path / "b.txt", "--tokenizer", tmp_path / "a", "--out_dir", tmp_path / "b"]
    prepare(*flags)
    a, b = (data_loader.Shards(tmp_path / name, "train") for name in "ab")
    assert (
        a.tokenizer == b.tokenizer and stored(tmp_path / "b").files == stored(tmp_path / "a").files
    )
    flags[2] = "bpe:300"
    (line,) = refused(prepare_text.main, *flags)
    assert "already holds a data set with another tokenizer" in line
    with open(tmp_path / "a" / "tokenizer.json", "a") as file:
        file.write(" ")
    with pytest.raises(InputError, match="has been changed, it is not the tokenizer bpe:400@"):
        stored(tmp_path / "a")


@pytest.mark.parametrize("file", [tokenizer.TOKENIZER_FILE, tokenizer.SETTINGS_FILE])
@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000], ids=lambda text: text[:3])
def test_corrupt_files_of_a_tokenizer_are_named(file, content, tmp_path):
    for name, stored_content in tokenizer.train_bpe(300, TEXTS).files.items():
        (tmp_path / name).write_bytes(stored_content)
    assert tokenizer.make_tokenizer(str(tmp_path), tuple).vocab_size == 300
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=f"{file}|{tmp_path} is no data set"):
        tokenizer.make_tokenizer(str(tmp_path), tuple)
    with pytest.raises(InputError, match=f"{file}.*: copy it from the data set"):
        tokenizer.load_tokenizer("bpe:300@0123456789ab", tmp_path)


def test_genuine_replacement_characters():
    """`errors="ignore"` keeps U+FFFD of the text, except at its ends."""
    ours = tokenizer.train_bpe(300, TEXTS)
    tokens = ours.encode("\ufffda\ufffdb\ufffd")
    assert ours.decode(tokens) == "\ufffda\ufffdb\ufffd"
    assert ours.decode(tokens, errors="ignore") == "a\ufffdb"
    cut = ours.encode("é")[1:] + tokens[3:-3] + ours.encode("é")[:1]
    assert ours.decode(cut, errors="ignore") == "a\ufffdb"


def test_bpe_of_a_short_text_of_none_and_of_a_limited_one(capsys, monkeypatch):
    ours = tokenizer.make_tokenizer("bpe:4096", lambda: ["ab ab ab"])
    assert ours.vocab_size < 270 and ours.eot == ours.vocab_size - 1
    assert "gives a vocabulary of only" in capsys.readouterr().out
    expected = tokenizer.train_bpe(300, TEXTS[:5])
    monkeypatch.setattr(tokenizer, "BPE_CHARACTERS", sum(map(len, TEXTS[:5])))
    assert tokenizer.make_tokenizer("bpe:300", lambda: iter(TEXTS)).name == expected.name
    with pytest.raises(InputError, match="bpe:300: no text to train on: use"):
        tokenizer.make_tokenizer("bpe:300", lambda: iter(()))


def test_time_of_bpe_does_not_depend_on_the_length_of_words():
    letters = "".join(random.Random(1).choices("ACGT", k=120_000))
    words = " ".join(letters[start : start + 100] for start in range(0, len(letters), 100))
    seconds = {}
    for text in (words, letters):
        start = time.perf_counter()
        ours = tokenizer.train_bpe(1000, [text])
        seconds[text] = time.perf_counter() - start
    assert seconds[letters] < 5 * seconds[words]
    assert ours.decode(ours.encode(letters)) == letters


def test_page_of_a_proxy_instead_of_a_vocabulary(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tiktoken.load, "read_file", lambda path: b"<html>Log in</html>")
    message = r"the gpt2 vocabulary could not be fetched \(Hash mismatch .*\): connect"
    with pytest.raises(InputError, match=message):
        tokenizer.load_tokenizer("gpt2")


def make_hugging_face_folder(folder, kind):
    """Save a tokenizer by transformers; return it, loaded by AutoTokenizer."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    ends, special = ["<s>", "</s>"], {}
    if kind == "byte-level":  # adds <s> and </s>, truncates
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
        special = {"bos_token": "<s>", "eos_token": "</s>"}
    else:  # SentencePiece's kind: no special tokens, unknown characters as bytes
        backend = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence(parts)
        ends, alphabet = [f"<0x{n:02X}>" for n in range(256)], {}
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=ends, show_progress=False, **alphabet
    )
    backend.train_from_iterator(TEXTS, trainer)
    if special:
        ids = [(token, backend.token_to_id(token)) for token in ends]
        template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
        backend.post_processor = template
        backend.enable_truncation(8)
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind, end", [("byte-level", "</s>"), ("fallback", "<|endoftext|>")])
def test_hugging_face_tokenizers_equal_auto_tokenizer(tmp_path, kind, end, capsys):
    theirs = make_hugging_face_folder(tmp_path / "tok", kind)
    sources, out = write_sources(tmp_path / "text"), tmp_path / "out"
    prepare(sources, "--tokenizer", f"hf:{tmp_path / 'tok'}", "--out_dir", out)
    shutil.rmtree(tmp_path / "tok")
    ours = stored(out)
    assert ours.name.startswith("hf:tok@")
    assert "does not restore every text" not in capsys.readouterr().out
    for text in [*TEXTS, *ALL]:
        ids = theirs(text, add_special_tokens=False, split_special_tokens=True, truncation=False)
        assert ours.encode(text) == ids.input_ids
    assert ours.decode([ours.eot]) == end
    if kind == "byte-level":
        check_round_trips(ours)
        assert ours.eot == theirs.eos_token_id
    else:
        assert ours.eot == len(theirs)  # <|endoftext|> is added
        assert all(ours.decode(ours.encode(text)) == text for text in TEXTS)


def test_large_vocabularies_are_stored_as_uint32(tmp_path, capsys):
    """A vocabulary of 65,536 tokens fits uint16, one more token does not."""
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in range(65_000, 65_535)) + "\n")
    (tmp_path / "val.txt").write_text("w65534 w65533 w7")
    for words, version in ((65_535, 1), (65_536, 2)):
        backend = Tokenizer(models.WordLevel({f"w{n}": n for n in range(words)}, unk_token="w0"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        path, out = tmp_path / f"{words}.json", tmp_path / f"out{words}"
        backend.save(str(path))
        flags = ["--tokenizer", f"hf:{path}", "--val", tmp_path / "val.txt", "--out_dir", out]
        prepare(tmp_path / "text.txt", *flags)
        val = data_loader.Shards(out, "val")
        assert val.tokens[0][:].tolist() == [words, 65_534, 65_533, 7]
        assert val.vocab_size == words + 1
        content = val.tokens[0].path.read_bytes()
        header = np.frombuffer(content[:1024], dtype="<i4")
        assert header[:4].tolist() == [20240520, version, 4, 0]
        assert len(content) == 1024 + 4 * 2 * version
        assert "does not restore every text" in capsys.readouterr().out
        assert val.padded_vocab_size == 65_536 + 64 * (version - 1)
