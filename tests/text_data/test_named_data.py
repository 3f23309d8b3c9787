"""text_data/named_data.py: which command prepares a data set, and a part of one."""

import json
from pathlib import Path

import pytest

import prepare_fineweb
from errors import InputError
from text_data.named_data import prepare_command

META = Path("data/fineweb-edu/meta.json")
BYTES = ["--tokenizer", "bytes"]


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Return the flags that prepare 4,000 bytes: `val` and `train`, of 1,000 bytes per shard."""
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"text": "x" * 99}) + "\n" for _ in range(40)]
    (tmp_path / "crawl.jsonl").write_text("".join(rows))
    flags = "--source crawl.jsonl --tokenizer bytes --shard_tokens 1000 --out_dir data/fineweb-edu"
    return flags.split()


def test_a_part_of_fineweb_is_completed_if_a_training_needs_more(part):
    prepare_fineweb.main([*part, "--shards", "3"])
    complete = ["prepare_fineweb.py", "--out_dir", "data/fineweb-edu"]
    for tokens, words in ((0, []), (2000, []), (2001, complete)):
        assert prepare_command("fineweb-edu", "full", tokens) == ("data/fineweb-edu", "val", words)
    prepare_fineweb.main(part)  # as the command would, with the text of the hub
    meta = json.loads(META.read_text())
    assert meta["splits"]["train"]["tokens"] == 40 * 100 - 1000
    # 4,000 bytes end with a full shard: the command looks for more.
    assert prepare_command("fineweb-edu", "full", 3001)[2] == complete


def test_the_whole_text_is_enough_for_any_number_of_epochs(part):
    prepare_fineweb.main([*part[:-4], "--shard_tokens", "900", *part[-2:]])
    assert prepare_command("fineweb-edu", "full", 10**9)[2] == []


def test_a_part_that_was_downloaded_is_completed_by_a_download(part):
    prepare_fineweb.main([*part, "--shards", "3"])
    meta = json.loads(META.read_text())
    meta["source"] = {"pretokenized": "kjj0/finewebedu10B-gpt2"}
    META.write_text(json.dumps(meta))
    assert "--pretokenized" in prepare_command("fineweb-edu", "full", 10**9)[2]


@pytest.mark.parametrize(
    "name, scale, folder, split, flags",
    [
        ("wikitext103", "full", "wikitext103", "test", []),
        ("wikitext103", "small", "wikitext103-bytes", "test", BYTES),
        ("wikitext103", "smoke", "stdlib", "val", []),
        ("fineweb", "full", "fineweb", "val", ["--shards", "2"]),
        ("fineweb-edu", "small", "fineweb-edu-bytes", "val", [*BYTES, "--shards", "2"]),
    ],
)  # fmt: skip
def test_data_sets_of_each_scale(tmp_path, monkeypatch, name, scale, folder, split, flags):
    monkeypatch.chdir(tmp_path)
    found, found_split, words = prepare_command(name, scale)
    assert (found, found_split) == (f"data/{folder}", split)
    assert words[-2:] == ["--out_dir", found] and words[-2 - len(flags) : -2] == flags
    assert words[0] == ("prepare_text.py" if folder == "stdlib" else words[0])


def test_unknown_data_is_one_line(tmp_path):
    remedy = "does not exist: use fineweb-edu, .*wikitext103"
    with pytest.raises(InputError, match=remedy):
        prepare_command(str(tmp_path / "nothing"), "full")
    with pytest.raises(InputError, match=remedy):
        prepare_command(str(tmp_path), "full")
