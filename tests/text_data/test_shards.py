"""Tests of token shards: format, resuming an interrupted preparation, and corrupt files."""

import numpy as np
import pytest
from conftest import contents, write_shards

import data_loader
from errors import InputError
from text_data import shards

LAST = "toy_train_000002.bin"
DESCRIPTION = {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"}


def overwrite(path, offset, content):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_shard_is_256_header_words_and_uint16_tokens(folder):
    """As llm.c's dataloader.h checks; nanoGPT's memmap of uint16 needs the offset."""
    content = (folder / LAST).read_bytes()
    header = np.frombuffer(content[:1024], dtype="<i4")
    assert header[:3].tolist() == [20240520, 1, 50] and not header[3:].any()
    assert len(content) == 1024 + 2 * header[2]
    assert np.frombuffer(content[1024:], dtype="<u2").tolist() == list(range(200, 250))
    tokens = np.memmap(folder / LAST, dtype=np.uint16, mode="r", offset=1024)
    assert tokens.tolist() == list(range(200, 250))


def test_a_shard_may_end_within_a_document(tmp_path):
    whole = write_shards(tmp_path / "whole", [np.arange(250)], shard_tokens=99)
    meta = shards.Meta(tmp_path / "part", DESCRIPTION)
    shards.ShardWriter(meta, "train", 99).add(0, 0, np.arange(150))
    part = write_shards(tmp_path / "part", [np.arange(250)], shard_tokens=99)
    assert contents(part) == contents(whole)


def test_one_writer_can_write_two_splits(tmp_path):
    """The first shard of 90 tokens is val; the document it cuts is the start of train.

    A document counts in the shard that holds its first token.
    """
    meta = shards.Meta(tmp_path / "toy", DESCRIPTION)
    writer = shards.ShardWriter(meta, "val", 90, later_split="train", max_shards=2)
    for number, tokens in enumerate(np.arange(250).reshape(10, 25)):
        writer.add(number, 0, tokens)
    writer.close()
    names = sorted(path.name for path in meta.folder.glob("*.bin"))
    assert writer.full and names == ["toy_train_000001.bin", "toy_val_000000.bin"]
    train = data_loader.TokenFile(meta.folder / "toy_train_000001.bin")[:]
    assert train.tolist() == list(range(90, 180))
    counts = [(split["documents"], split["tokens"]) for split in meta.content["splits"].values()]
    assert counts == [(4, 90), (4, 90)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_missing_shards_are_written_again(tmp_path, folder, lost):
    before = contents(folder)
    (folder / f"toy_train_{lost:06d}.bin").unlink()
    meta = shards.Meta(folder, DESCRIPTION)
    assert meta.content["complete"]
    assert shards.ShardWriter(meta, "train", 100).start == [(0, 0), (3, 25), (7, 25)][lost]
    assert not meta.content["complete"] and meta.content["splits"]["train"]["tokens"] == 100 * lost
    write_shards(folder, np.arange(250).reshape(10, 25), shard_tokens=100)
    assert contents(folder) == before


def test_verify_hashes_every_split(folder, capsys):
    shards.verify(folder)
    output = capsys.readouterr().out
    assert output == f"{folder}: 3 shards, 250 tokens, all match their hashes\n"
    overwrite(folder / "toy_train_000001.bin", 1024, b"\x09")
    (folder / "toy_train_000002.bin").unlink()
    with pytest.raises(InputError) as error:
        shards.verify(folder)
    changed, lost = error.value.problems
    assert "000001.bin has been changed" in changed
    assert changed.endswith("remove it and run the preparation again")
    assert "000002.bin does not exist: run the preparation again" in lost


def test_a_data_set_of_several_lines_is_refused_before_it_is_written(tmp_path):
    with pytest.raises(InputError, match="expected a name .*: pass another --out_dir"):
        shards.Meta(tmp_path / "a\nb", DESCRIPTION | {"dataset": "a\nb"})
    assert not [*tmp_path.iterdir()]
