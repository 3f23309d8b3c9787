"""Tests of prepare_fineweb.py: streaming rows, resuming, and pretokenized shards."""

import gzip
import json
import lzma

import hub_examples
import pyarrow
import pyarrow.parquet
import pytest
from conftest import contents, repeat_until_done

import data_loader
import prepare_fineweb
from errors import InputError
from text_data import shards, text_sources, tokenization, tokenizer

EOT = 256
TEXTS = hub_examples.fineweb_texts()
FILES = [TEXTS[:20], TEXTS[20:40], TEXTS[40:]]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(text_sources, "ROWS_PER_READ", 4)
    monkeypatch.setattr(text_sources, "PIECE_CHARACTERS", 64)
    monkeypatch.setattr(tokenization, "BATCH_CHARACTERS", 16)
    monkeypatch.setattr(tokenization, "BATCHES_PER_CORE", 4)


def write_sources(folder, kind):
    folder.mkdir(parents=True, exist_ok=True)
    compress = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.xz": lzma.compress}
    for number, texts in enumerate(FILES):
        path = folder / f"{number:03d}.{kind}"
        if kind == "parquet":
            table = pyarrow.table({"text": texts, "id": range(len(texts))})
            pyarrow.parquet.write_table(table, path, row_group_size=7)
        else:
            rows = [json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts)]
            path.write_bytes(compress[kind]("".join(rows).encode()))
    return folder


@pytest.fixture
def hub(tmp_path):
    """A folder with the layout of the data set on the hub."""
    return hub_examples.write_fineweb(tmp_path)


def source_flags(tmp_path, hub, kind):
    if kind == "hub":
        return ["--dataset", hub]
    return ["--source", write_sources(tmp_path / "files", kind)]


def prepare(out, *flags):
    small = ["--tokenizer", "bytes", "--shard_tokens", "500", "--out_dir", str(out)]
    prepare_fineweb.main([*map(str, flags), *small])
    return out


def expected_shards():
    tokens = [token for text in TEXTS for token in (EOT, *text.encode())]
    return [tokens[i : i + 500] for i in range(0, len(tokens), 500)]


@pytest.mark.parametrize("kind", ["hub", "parquet", "jsonl", "jsonl.gz", "jsonl.xz"])
def test_first_shard_is_val_and_the_others_are_train(tmp_path, hub, kind):
    out = prepare(tmp_path / "out", *source_flags(tmp_path, hub, kind))
    parts = expected_shards()
    # A document is cut at the border of the splits.
    assert len(parts) > 9 and EOT not in (parts[0][-1], parts[1][0])
    val = data_loader.TokenFile(out / "out_val_000000.bin")[:].tolist()
    paths = [out / f"out_train_{n:06d}.bin" for n in range(1, len(parts))]
    train = [data_loader.TokenFile(path)[:].tolist() for path in paths]
    assert [val] == parts[:1] and train == parts[1:]
    for split, part in (("val", parts[:1]), ("train", parts[1:])):
        record = data_loader.Shards(out, split, "always").meta["splits"][split]
        documents = [tokens.count(EOT) for tokens in part]
        assert [entry["documents"] for entry in record["shards"]] == documents


@pytest.mark.parametrize(
    "moment, kind",
    [
        ("before a shard", "hub"),
        ("after a shard", "jsonl.gz"),
        ("a row", "hub"),
        ("a row", "jsonl.gz"),
    ],
)
def test_interrupted_anywhere_it_writes_the_same_bytes(tmp_path, hub, monkeypatch, kind, moment):
    flags = source_flags(tmp_path, hub, kind)
    whole = contents(prepare(tmp_path / "whole" / "toy", *flags))
    flush, read_rows = shards.ShardWriter._flush, text_sources.read_rows
    flushed, interrupted_at = [], []

    def flush_and_interrupt(self, next_token):
        if moment == "before a shard" and len(interrupted_at) <= len(flushed):
            interrupted_at.append(moment)
            raise KeyboardInterrupt
        flush(self, next_token)
        flushed.append(self.shards[-1]["file"])
        if moment == "after a shard":
            interrupted_at.append(moment)
            raise KeyboardInterrupt

    def read_rows_and_interrupt(*args, **kwargs):
        for count, row in enumerate(read_rows(*args, **kwargs)):
            # At another row each time.
            if moment == "a row" and count == 19 - len(interrupted_at):
                interrupted_at.append(row[0][0])
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(shards.ShardWriter, "_flush", flush_and_interrupt)
    monkeypatch.setattr(text_sources, "read_rows", read_rows_and_interrupt)
    monkeypatch.setattr(tokenization.os, "cpu_count", lambda: 1)
    interruptions = repeat_until_done(lambda: prepare(tmp_path / "part" / "toy", *flags))
    if moment == "a row":
        assert interruptions >= 3 and len(set(interrupted_at)) == interruptions
    else:
        assert interruptions >= len(expected_shards())
    assert len(flushed) == len({*flushed}) == len(expected_shards())  # none is written twice
    assert contents(tmp_path / "part" / "toy") == whole


@pytest.mark.parametrize("kind", ["hub", "jsonl"])
def test_resuming_reads_and_tokenizes_only_the_rest(tmp_path, hub, monkeypatch, kind):
    flags = source_flags(tmp_path, hub, kind)
    whole = contents(prepare(tmp_path / "whole" / "toy", *flags))
    prepare(tmp_path / "toy", *flags, "--shards", 9)
    meta = json.loads((tmp_path / "toy" / "meta.json").read_text())
    last = meta["splits"]["train"]["shards"][-1]
    first_row, next_document = last["mark"][0], last["next"][0]
    assert 40 <= first_row == next_document  # the first two files are finished
    rows_read, tokenized = record_reading(monkeypatch)
    prepare(tmp_path / "toy", *flags)
    assert (rows_read[0], tokenized) == (first_row, TEXTS[next_document:])
    assert contents(tmp_path / "toy") == whole


def record_reading(monkeypatch):
    """Return two lists: the numbers of the rows read, and the texts tokenized, from now on."""
    rows_read, tokenized = [], []
    read_rows, split_text = text_sources.read_rows, text_sources.split_text

    def recording_rows(*args, **kwargs):
        for mark, text in read_rows(*args, **kwargs):
            rows_read.append(mark[0])
            yield mark, text

    def recording_split(text):
        tokenized.append(text)
        return split_text(text)

    monkeypatch.setattr(text_sources, "read_rows", recording_rows)
    monkeypatch.setattr(text_sources, "split_text", recording_split)
    return rows_read, tokenized


def test_reading_stops_after_the_last_requested_shard(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(tokenization.os, "cpu_count", lambda: 1)
    rows_read, _ = record_reading(monkeypatch)
    prepare(tmp_path / "toy", "--dataset", hub, "--shards", 2)
    assert rows_read[0] == 0 and len(rows_read) < 25


def test_other_text_is_not_called_fineweb_edu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_sources(tmp_path / "my.crawl", "jsonl")
    flags = ["--tokenizer", "bytes", "--shard_tokens", "500", "--source", str(source)]
    prepare_fineweb.main(flags)
    assert json.loads((tmp_path / "data/my/meta.json").read_text())["dataset"] == "my"


def test_bpe_is_trained_on_text_after_val(tmp_path):
    """The tokenizer does not know the words of the first texts, `val`."""
    out, source = tmp_path / "out", tmp_path / "texts.jsonl"
    texts = ["alpha beta " * 5] * 15 + ["gamma delta " * 5] * 30
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def run(shard_tokens):
        flags = ["--tokenizer", "bpe:290", "--shard_tokens", str(shard_tokens)]
        prepare_fineweb.main([*flags, "--source", str(source), "--out_dir", str(out)])
        return json.loads((out / "meta.json").read_text())

    meta = run(150)  # 900 characters: 17 texts
    assert meta["splits"]["val"]["documents"] <= 17
    after = tokenizer.train_bpe(290, texts[17:])
    assert meta["tokenizer"] == after.name != tokenizer.train_bpe(290, texts).name
    with pytest.raises(InputError, match="no text to train on"):
        prepare_fineweb.main(["--tokenizer", "bpe:290", "--source", str(source), "--out_dir", "b"])


def test_shards_added_later_equal_one_run(tmp_path, hub, capsys):
    for count in (2, 3, 7, None, None):
        flags = ["--dataset", hub, *(["--shards", count] if count else [])]
        prepare(tmp_path / "grown" / "toy", *flags)
        one_run = contents(prepare(tmp_path / str(count) / "toy", *flags))
        assert len(one_run) == 1 + (count or len(expected_shards()))
        assert contents(tmp_path / "grown" / "toy") == one_run
    capsys.readouterr()
    prepare(tmp_path / "grown" / "toy", "--dataset", hub, "--shards", 3)
    assert "is already prepared" in capsys.readouterr().out
    assert contents(tmp_path / "grown" / "toy") == one_run
