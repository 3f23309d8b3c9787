"""Tests of foreign shards: files of llm.c, modded-nanogpt and nanoGPT without meta.json.

The files are written as those repositories write them: with struct and array, not with our writer.
"""

import array
import os
import struct

import pytest

import prepare_text
from errors import InputError
from text_data import data_loader, shard_format, shards

TOKENS = [50256, *range(1, 50_000, 7)]


def write_llm_c(path, tokens=TOKENS, magic=20240520, version=1, kind="H"):
    header = struct.pack("<256i", magic, version, len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}{kind}", *tokens))


def write_nano_gpt(path, tokens=TOKENS):
    path.write_bytes(array.array("H", tokens).tobytes())


@pytest.fixture(autouse=True)
def forget_messages():
    shard_format.describe_foreign.cache_clear()


@pytest.mark.parametrize(
    "write, train, val",
    [
        (write_llm_c, "fineweb_train_000001.bin", "fineweb_val_000000.bin"),
        (write_llm_c, "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"),
        (write_nano_gpt, "train.bin", "val.bin"),
        (write_llm_c, "train.bin", "val.bin"),
    ],
)
def test_foreign_shards_are_read_as_gpt2_with_one_message(tmp_path, capsys, write, train, val):
    write(tmp_path / train)
    write(tmp_path / val, TOKENS[:100])
    splits = [shards.Shards(tmp_path, split) for split in ("train", "val", "train")]
    assert [split.tokens[0][:].tolist() for split in splits] == [TOKENS, TOKENS[:100], TOKENS]
    assert {(split.tokenizer, split.vocab_size) for split in splits} == {("gpt2", 50257)}
    assert capsys.readouterr().out.count("read as GPT-2 tokens") == 1
    inputs, targets = data_loader.Windows(splits[0], 50).batch([3])
    assert inputs[0].tolist() == TOKENS[150:200] and targets[0].tolist() == TOKENS[151:201]
    prepare_text.main(["--verify", "--out_dir", str(tmp_path)])
    with pytest.raises(InputError, match="has no meta.json with hashes .*: use the shards without"):
        shards.Shards(tmp_path, "train", verify="always")
    count = len(TOKENS) + 100
    assert f"2 shards, {count:,} tokens, headers and sizes" in capsys.readouterr().out


def test_gpt2_has_no_token_that_looks_like_the_header():
    assert struct.unpack("<2H", struct.pack("<i", 20240520))[0] > 50256


def problems_of(folder, split="train"):
    shard_format.describe_foreign.cache_clear()
    with pytest.raises(InputError) as error:
        shards.Shards(folder, split)
    return error.value.problems


def test_files_that_are_not_gpt2_tokens_are_refused_in_one_line(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(b"123")
    (line,) = problems_of(tmp_path)
    assert f"{path} has 3 bytes, an odd number" in line
    path.write_bytes(b"")
    assert "is empty" in problems_of(tmp_path)[0]
    write_nano_gpt(path, [1, 2, 50257])
    (line,) = problems_of(tmp_path)
    assert "token 50257 at offset 2 is outside the vocabulary of 50257" in line
    assert line.endswith(": prepare the text with prepare_text.py")
    for kind in "iq":
        path.write_bytes(array.array(kind, range(5000)).tobytes())
        (line,) = problems_of(tmp_path)
        assert line == (
            f"{path} looks like int32 or int64, not uint16: write it with tokens.astype(np.uint16)"
        )
    write_llm_c(path, magic=20240801, version=7, kind="I")
    (line,) = problems_of(tmp_path)
    assert "llm.c's shard of Llama tokens" in line and line.count(": ") == 1
    path.rename(tmp_path / "fineweb_train_000001.bin")
    assert "llm.c's shard of Llama tokens" in problems_of(tmp_path)[0]
    write_llm_c(tmp_path / "fineweb_train_000001.bin", version=3)
    assert "is a shard of version 3, not 1: remove it" in problems_of(tmp_path)[0]
    write_llm_c(tmp_path / "fineweb_train_000001.bin")
    (tmp_path / "fineweb_train_000002.bin").write_bytes(b"")
    os.truncate(tmp_path / "fineweb_train_000001.bin", 1024 + 198)
    short, empty = problems_of(tmp_path)
    assert "is not a shard" in empty
    assert f"holds 99 tokens, its header says {len(TOKENS)}: remove it" in short
    (tmp_path / "fineweb_train_000002.bin").unlink()
    # Only train.bin and val.bin are read without a header.
    write_nano_gpt(tmp_path / "fineweb_train_000001.bin")
    assert "is not a shard" in problems_of(tmp_path)[0]


def test_verify_checks_all_tokens(tmp_path, refused):
    write_nano_gpt(tmp_path / "val.bin", [*[7] * 600_000, 60_000])
    assert shards.Shards(tmp_path, "val").total == 600_001  # the first MB is checked
    (line,) = refused(prepare_text.main, "--verify", "--out_dir", tmp_path)
    assert "token 60000 at offset 600000" in line


def test_character_level_data_is_refused_and_never_unpickled(tmp_path):
    write_nano_gpt(tmp_path / "train.bin", [1, 2, 3])
    (tmp_path / "meta.pkl").write_bytes(b"not a pickle")
    (tmp_path / "input.txt").write_text("text")
    (line,) = problems_of(tmp_path)
    assert "holds nanoGPT's character-level tokens (meta.pkl), not GPT-2's: prepare the" in line
    assert line.endswith(f"(use {tmp_path / 'input.txt'})")


def test_ambiguous_folders_are_refused(tmp_path):
    write_llm_c(tmp_path / "TinyStories_train.bin")
    write_llm_c(tmp_path / "tiny_shakespeare_train.bin")
    assert "several data sets for train (TinyStories_train.bin" in problems_of(tmp_path)[0]
    (tmp_path / "names").mkdir()
    write_llm_c(tmp_path / "names" / "shakespeare.bin")
    assert ".bin files have unknown names: rename them to" in problems_of(tmp_path / "names")[0]
    (tmp_path / "tiny_shakespeare_train.bin").unlink()
    write_nano_gpt(tmp_path / "held_out.bin")
    (line,) = problems_of(tmp_path, "val")
    assert line == (
        f"{tmp_path} has no split 'val': choose one of train, or name a file val.bin or "
        "NAME_val_000001.bin"
    )
    path = tmp_path / "TinyStories_train.bin"
    assert f"data {path} is a file: pass the folder" in problems_of(path)[0]
