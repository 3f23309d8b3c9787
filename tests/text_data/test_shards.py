"""Shards byte for byte, preparations that were interrupted, and every damage that must be told."""

import json
import shutil

import numpy as np
import pytest
from conftest import write_shards

from errors import InputError
from text_data import shards


def test_a_shard_is_256_words_and_uint16_tokens(folder):
    content = (folder / "toy_train_000002.bin").read_bytes()
    header = np.frombuffer(content[:1024], dtype="<i4")
    assert header[:3].tolist() == [20240520, 1, 50] and not header[3:].any()
    assert np.frombuffer(content[1024:], dtype="<u2").tolist() == list(range(200, 250))


def test_meta_counts_and_hashes(folder):
    import hashlib

    train = json.loads((folder / "meta.json").read_text())["splits"]["train"]
    assert (train["documents"], train["tokens"]) == (10, 250)
    assert [shard["tokens"] for shard in train["shards"]] == [100, 100, 50]
    for shard in train["shards"]:
        assert shard["sha256"] == hashlib.sha256((folder / shard["file"]).read_bytes()).hexdigest()


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_interrupted_writer_goes_on_to_the_same_bytes(tmp_path, folder, done):
    """`done` shards are finished when it stops, in the middle of a document."""
    part = tmp_path / "part"
    meta = shards.Meta(
        part, {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"}
    )
    meta.write()
    writer = shards.ShardWriter(meta, "train", 100)
    documents = np.arange(250).reshape(10, 25)
    for number, tokens in enumerate(documents[: 4 * done + 1]):
        writer.add(number, 0, tokens[:10])
        writer.add(number, 10, tokens[10:])
    before = {path: path.stat().st_mtime_ns for path in part.glob("*.bin")}
    assert len(before) == done
    write_shards(part, documents, shard_tokens=100)
    assert all(
        path.stat().st_mtime_ns == time for path, time in before.items()
    )  # not written again
    for path in folder.iterdir():
        assert (part / path.name).read_bytes() == path.read_bytes()


def test_a_shard_may_end_within_a_document(tmp_path):
    whole = write_shards(tmp_path / "whole", [np.arange(250)], shard_tokens=99)
    meta = shards.Meta(
        tmp_path / "part",
        {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"},
    )
    shards.ShardWriter(meta, "train", 99).add(0, 0, np.arange(150))
    part = write_shards(tmp_path / "part", [np.arange(250)], shard_tokens=99)
    assert [path.read_bytes() for path in sorted(whole.iterdir())] == [
        path.read_bytes() for path in sorted(part.iterdir())
    ]


def change(path, at, content):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda shard: shard.unlink(), "does not exist: run the preparation again"),
        (lambda shard: shard.write_bytes(b""), "is no shard"),
        (
            lambda shard: shard.write_bytes(shard.read_bytes()[:-2]),
            "holds 99 tokens, its header says 100, meta.json 100: remove it and run the preparation again",
        ),
        (
            lambda shard: change(shard, 8, (90).to_bytes(4, "little")),
            "holds 100 tokens, its header says 90, meta.json 100",
        ),
        (lambda shard: change(shard, 8, (0).to_bytes(4, "little")), "is empty"),
        (lambda shard: change(shard, 0, b"\x01"), "is no shard"),
        (lambda shard: change(shard, 4, b"\x07"), "is a shard of version 7, not 1"),
        (lambda shard: change(shard, 1024, b"\x09"), "has been changed since it was written"),
        (
            lambda shard: shutil.copy(shard.with_name("toy_train_000002.bin"), shard),
            "meta.json 100: remove it and run the preparation again",
        ),
        (
            lambda shard: [path.unlink() for path in shard.parent.iterdir()],
            "meta.json does not exist: prepare",
        ),
        (
            lambda shard: (shard.parent / "meta.json").write_text('{"complete'),
            "meta.json cannot be read",
        ),
        (lambda shard: (shard.parent / "meta.json").write_text("[]"), "meta.json is damaged"),
        (
            lambda shard: (shard.parent / "meta.json").write_text(
                '{"complete": true, "splits": {}, "vocab_size": 5, "tokenizer": "x"}'
            ),
            "has no split 'train'",
        ),
        (
            lambda shard: shutil.rmtree(shard.parent),
            "does not exist: make it by prepare_text.py, prepare_fineweb.py or",
        ),
    ],
)
def test_damage_is_told_in_one_line(folder, damage, told):
    damage(folder / "toy_train_000001.bin")
    with pytest.raises(InputError) as error:
        shards.Shards(folder, "train")
    assert len(error.value.problems) == 1 and told in error.value.problems[0]


def test_several_bad_shards_are_told_together(folder):
    for number in (0, 2):
        (folder / f"toy_train_{number:06d}.bin").unlink()
    with pytest.raises(InputError) as error:
        shards.Shards(folder, "train")
    assert len(error.value.problems) == 2


def test_hashing_can_be_turned_off(folder):
    change(folder / "toy_train_000001.bin", 1024, b"\x09")
    assert shards.Shards(folder, "train", verify="never").total == 250


def test_one_writer_may_serve_two_splits(tmp_path):
    """The first shard of 100 tokens is val; the document it cuts opens train, and counts where it begins."""
    documents = np.arange(250).reshape(10, 25)
    meta = shards.Meta(
        tmp_path / "toy",
        {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"},
    )
    writer = shards.ShardWriter(meta, "val", 90, then="train", limit=2)
    for number, tokens in enumerate(documents):
        writer.add(number, 0, tokens)
    writer.close()
    assert writer.full and sorted(path.name for path in meta.folder.glob("*.bin")) == [
        "toy_train_000001.bin",
        "toy_val_000000.bin",
    ]
    assert shards.tokens_of(meta.folder / "toy_train_000001.bin").tolist() == list(range(90, 180))
    assert [
        (record["documents"], record["tokens"]) for record in meta.value["splits"].values()
    ] == [(4, 90), (4, 90)]


def test_a_shard_tells_from_where_its_source_may_be_read_on(tmp_path):
    meta = shards.Meta(
        tmp_path / "toy",
        {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"},
    )
    writer = shards.ShardWriter(
        meta, "train", 60
    )  # shards end within documents 2, 4 and 7, and after it
    for number in range(8):
        if number % 4 == 0:  # two marks are set before the tokens come, as the source is read ahead
            writer.mark(number, f"state {number}")
            writer.mark(number + 2, f"state {number + 2}")
        writer.add(number, 0, np.arange(25))
    writer.close()
    assert [shard["mark"] for shard in meta.value["splits"]["train"]["shards"]] == [
        [2, "state 2"],
        [4, "state 4"],
        [6, "state 6"],
        [6, "state 6"],
    ]
    assert shards.ShardWriter(meta, "train", 60).marks == [[6, "state 6"]]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_the_disk_has_lost_is_written_again(tmp_path, folder, lost):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / f"toy_train_{lost:06d}.bin").unlink()
    meta = shards.Meta(
        folder, {"dataset": "toy", "tokenizer": "bytes", "vocab_size": 257, "source": "test"}
    )
    assert meta.value["complete"]
    assert shards.ShardWriter(meta, "train", 100).start == [(0, 0), (3, 25), (7, 25)][lost]
    assert not meta.value["complete"] and meta.value["splits"]["train"]["tokens"] == 100 * lost
    write_shards(folder, np.arange(250).reshape(10, 25), shard_tokens=100)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_verify_hashes_every_split(folder, capsys):
    shards.verify(folder)
    assert capsys.readouterr().out == f"{folder}: 3 shards, 250 tokens, all as they were written\n"
    change(folder / "toy_train_000001.bin", 1024, b"\x09")
    (folder / "toy_train_000002.bin").unlink()
    with pytest.raises(InputError) as error:
        shards.verify(folder)
    changed, lost = error.value.problems
    assert "000001.bin has been changed" in changed and changed.endswith(
        "remove it and run the preparation again"
    )
    assert lost.endswith(
        "000002.bin does not exist: run the preparation again, it makes what is missing"
    )


@pytest.mark.parametrize("content", ["[]", '{"splits": 5}'])
def test_verify_tells_of_a_damaged_meta(folder, content):
    (folder / "meta.json").write_text(content)
    with pytest.raises(InputError, match="meta.json is damaged: prepare"):
        shards.verify(folder)


def test_shards_without_meta_are_gpt2_and_said_so_once(folder, capsys):
    shutil.copy(
        folder / "toy_train_000001.bin", folder / "toy_train_val_000000.bin"
    )  # of a data set named toy_train
    (folder / "meta.json").unlink()
    train, val = (shards.Shards(folder, split) for split in ("train", "val"))
    assert (train.total, val.total, train.tokenizer, train.vocab_size) == (250, 100, "gpt2", 50257)
    assert train.meta["dataset"] == "toy"
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 1
        and "taken for GPT-2 tokens (vocabulary 50257), unverified" in lines[0]
        and "first MB of each file" in lines[0]
    )
    with pytest.raises(InputError, match="has no split 'test': choose one of train val"):
        shards.Shards(folder, "test")
    with pytest.raises(
        InputError,
        match="has no meta.json, so nothing tells what its shards must hold: read them unverified",
    ):
        shards.Shards(folder, "train", verify="always")
    with pytest.raises(InputError, match="meta.json does not exist: --verify needs its hashes"):
        shards.verify(folder)


def test_shards_without_meta_are_named_by_names_headers_sizes_and_beginnings(tmp_path):
    def name(change_, folder=tmp_path):
        copy = write_shards(
            folder / str(len(list(folder.iterdir()))) / "toy",
            [np.arange(1 << 20) % 500],
            shard_tokens=(1 << 20) - 9,
        )
        (copy / "meta.json").unlink()
        change_(copy / "toy_train_000000.bin")
        return shards.Shards(copy, "train").sha256

    names = [
        name(lambda shard: None),
        name(lambda shard: change(shard, 1024 + (1 << 20) - 1, b"\x09")),
        name(lambda shard: shard.with_name("toy_train_000001.bin").unlink()),
        name(lambda shard: shard.rename(shard.with_name("toy_train_000007.bin"))),
    ]
    assert len(set(names)) == 4
    assert (
        name(lambda shard: change(shard, 1024 + (1 << 20), b"\x09"))
        == names[0]
        == name(lambda shard: None)
    )


def test_headers_are_checked_without_meta_too(folder):
    (folder / "meta.json").unlink()
    (folder / "toy_train_000000.bin").write_bytes(b"")
    shard = folder / "toy_train_000001.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(InputError) as error:
        shards.Shards(folder, "train")
    empty, short = error.value.problems
    assert "is no shard" in empty and "holds 99 tokens, its header says 100: remove it" in short
