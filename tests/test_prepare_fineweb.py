"""A stream of rows becomes shards, the first of them `val`, and the same ones however often it is cut off; ready shards are taken."""

import gzip
import json
import lzma
import shutil
import types

import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub.errors import HTTPError

import prepare_fineweb
from text_data import shards, tokenization

EOT = 256
TEXTS = [f"{n}: naïve " + "words " * (n * 7 % 30) for n in range(60)]
FILES = [TEXTS[:25], TEXTS[25:40], TEXTS[40:]]
README = """---
configs:
- config_name: default
  data_files: other/*.parquet
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*.parquet
---
"""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(tokenization, "ROWS", 4)
    monkeypatch.setattr(tokenization, "PIECE", 64)


def write_sources(folder, kind):
    folder.mkdir(parents=True, exist_ok=True)
    for number, texts in enumerate(FILES):
        path = folder / f"{number:03d}.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(
                pyarrow.table({"text": texts, "id": range(len(texts))}), path, row_group_size=7
            )
            continue
        content = "".join(
            json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts)
        ).encode()
        path.write_bytes(
            {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.xz": lzma.compress}[kind](content)
        )
    return folder


@pytest.fixture
def hub(tmp_path):
    """A folder laid out like the data set on the hub."""
    write_sources(tmp_path / "hub" / "sample" / "10BT", "parquet")
    (tmp_path / "hub" / "other").mkdir()
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["not this one"]}), tmp_path / "hub" / "other" / "0.parquet"
    )
    (tmp_path / "hub" / "README.md").write_text(README)
    return tmp_path / "hub"


def prepare(out, *flags):
    prepare_fineweb.main(
        [*map(str, flags), "--tokenizer", "bytes", "--shard_tokens", "500", "--out_dir", str(out)]
    )
    return out


def contents(out):
    """Every file's content; meta.json's without the marks, which tell how often the stream was opened."""
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    meta = json.loads(files.pop("meta.json"))
    for split in meta["splits"].values():
        for shard in split["shards"]:
            shard.pop("mark", None)
    return files, meta


def expected(texts=TEXTS):
    tokens = [token for text in texts for token in (EOT, *text.encode())]
    return [tokens[i : i + 500] for i in range(0, len(tokens), 500)]


@pytest.mark.parametrize("kind", ["hub", "parquet", "jsonl", "jsonl.gz", "jsonl.xz"])
def test_the_first_shard_is_val_and_the_rest_train(tmp_path, hub, kind):
    flags = (
        ["--dataset", hub]
        if kind == "hub"
        else ["--source", write_sources(tmp_path / "files", kind)]
    )
    out, parts = prepare(tmp_path / "out", *flags), expected()
    assert len(parts) > 9 and EOT not in (
        parts[0][-1],
        parts[1][0],
    )  # a document lies across the border
    assert [shards.tokens_of(out / "out_val_000000.bin").tolist()] == parts[:1]
    assert [
        shards.tokens_of(out / f"out_train_{n:06d}.bin").tolist() for n in range(1, len(parts))
    ] == parts[1:]
    for split, part in (("val", parts[:1]), ("train", parts[1:])):
        read = shards.Shards(out, split, "always")
        assert read.total == sum(map(len, part))
        assert read.meta["splits"][split]["documents"] == sum(tokens.count(EOT) for tokens in part)
        assert [shard["documents"] for shard in read.meta["splits"][split]["shards"]] == [
            tokens.count(EOT) for tokens in part
        ]


@pytest.mark.parametrize("kind", ["hub", "jsonl.gz"])
@pytest.mark.parametrize("moment", ["before a shard", "after a shard", "at a row"])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path, hub, monkeypatch, kind, moment):
    flags = (
        ["--dataset", hub]
        if kind == "hub"
        else ["--source", write_sources(tmp_path / "files", kind)]
    )
    whole = contents(prepare(tmp_path / "whole" / "toy", *flags))
    flush, rows, flushed, deaths = shards.ShardWriter._flush, tokenization.rows, [], []

    def flush_and_die(self, following):
        if moment == "before a shard" and len(deaths) <= len(flushed):
            deaths.append(moment)
            raise KeyboardInterrupt
        flush(self, following)
        flushed.append(self.shards[-1]["file"])
        if moment == "after a shard":
            deaths.append(moment)
            raise KeyboardInterrupt

    def rows_and_death(*args):
        for count, row in enumerate(rows(*args)):
            if moment == "at a row" and count == 19 - len(deaths):  # in ever other places
                deaths.append(row[0])
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(shards.ShardWriter, "_flush", flush_and_die)
    monkeypatch.setattr(tokenization, "rows", rows_and_death)
    monkeypatch.setattr(tokenization.os, "cpu_count", lambda: 1)
    for starts in range(60):
        try:
            prepare(tmp_path / "part" / "toy", *flags)
            break
        except KeyboardInterrupt:
            pass
    assert starts >= (3 if moment == "at a row" else len(whole[0])) and len(set(deaths)) == (
        starts if moment == "at a row" else 1
    )
    assert flushed == sorted(whole[0], key=lambda name: name[-10:])  # no shard twice
    assert contents(tmp_path / "part" / "toy") == whole


@pytest.mark.parametrize("kind", ["hub", "jsonl"])
def test_going_on_reads_and_tokenises_only_the_rest(tmp_path, hub, monkeypatch, kind):
    source = hub / "sample" / "10BT" if kind == "hub" else write_sources(tmp_path / "files", kind)
    monkeypatch.setattr(
        tokenization, "fingerprint", lambda files: "the same"
    )  # whatever happens to them
    flags = ["--dataset", hub] if kind == "hub" else ["--source", source]
    whole = contents(prepare(tmp_path / "whole" / "toy", *flags))
    prepare(tmp_path / "toy", *flags, "--shards", 9)
    first, state = json.loads((tmp_path / "toy" / "meta.json").read_text())["splits"]["train"][
        "shards"
    ][-1]["mark"]
    after = json.loads((tmp_path / "toy" / "meta.json").read_text())["splits"]["train"]["shards"][
        -1
    ]["next"][0]
    assert 40 <= first <= after < first + 4  # the first two files are behind
    path = next(source.glob("*0.*"))  # were it read again, the rows would be counted wrongly
    if kind == "hub":
        pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS[:3], "id": range(3)}), path)
    else:
        path.write_text('{"text": "", "id": 0}\n'.ljust(path.stat().st_size))
    read, tokenised = spies(monkeypatch)
    prepare(tmp_path / "toy", *flags)
    assert (read[0], tokenised) == (first, TEXTS[after:])
    assert contents(tmp_path / "toy") == whole


def spies(monkeypatch):
    """Lists that fill with the numbers of the rows read and with the texts tokenised."""
    read, tokenised, rows, pieces = [], [], tokenization.rows, tokenization.pieces
    monkeypatch.setattr(
        tokenization,
        "rows",
        lambda *args: ((read.append(number), (number, text))[1] for number, text in rows(*args)),
    )
    monkeypatch.setattr(tokenization, "pieces", lambda text: tokenised.append(text) or pieces(text))
    return read, tokenised


def test_reading_ends_with_the_last_shard_that_is_wanted(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(tokenization.os, "cpu_count", lambda: 1)
    read, _ = spies(monkeypatch)
    prepare(tmp_path / "toy", "--dataset", hub, "--shards", 2)
    assert read[0] == 0 and len(read) < 25


def test_a_stream_of_another_version_is_read_from_the_start(tmp_path, hub, monkeypatch):
    whole = contents(prepare(tmp_path / "whole" / "toy", "--dataset", hub))
    prepare(tmp_path / "toy", "--dataset", hub, "--shards", 5)
    monkeypatch.setattr("datasets.__version__", "1.0")
    read, _ = spies(monkeypatch)
    prepare(tmp_path / "toy", "--dataset", hub)
    assert read == [*range(60)]
    assert contents(tmp_path / "toy") == whole


def test_more_shards_later_are_those_of_one_go(tmp_path, hub, capsys):
    for count in (2, 3, 7, None, None):
        flags = ["--dataset", hub, *(["--shards", count] if count else [])]
        prepare(tmp_path / "grown" / "toy", *flags)
        once = contents(prepare(tmp_path / str(count) / "toy", *flags))
        assert (
            len(once[0]) == (count or len(expected()))
            and contents(tmp_path / "grown" / "toy") == once
        )
    capsys.readouterr()
    prepare(tmp_path / "grown" / "toy", "--dataset", hub, "--shards", 3)
    assert (
        "is prepared already" in capsys.readouterr().out
        and contents(tmp_path / "grown" / "toy") == once
    )


@pytest.mark.parametrize("lost", ["toy_val_000000.bin", "toy_train_000004.bin"])
def test_a_lost_shard_is_made_again(tmp_path, hub, refused, lost):
    out = prepare(tmp_path / "toy", "--dataset", hub)
    whole = contents(out)
    (out / lost).unlink()
    assert refused(prepare_fineweb.main, "--verify", "--out_dir", out) == [
        f"error: {out / lost} does not exist: run the preparation again, it makes what is missing"
    ]
    prepare(out, "--dataset", hub)
    assert contents(out) == whole


def test_the_revision_is_that_of_the_beginning(tmp_path, hub, monkeypatch):
    import datasets

    load, asked = datasets.load_dataset, []

    def load_dataset(path, name, split, streaming, revision):
        asked.append((path, revision))
        return load(str(hub), name, split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(
        huggingface_hub,
        "dataset_info",
        lambda repository, revision=None: types.SimpleNamespace(sha=revision or "first"),
    )
    prepare(tmp_path / "toy", "--shards", 2)
    monkeypatch.setattr(
        huggingface_hub,
        "dataset_info",
        lambda repository, revision=None: types.SimpleNamespace(sha=revision or "second"),
    )
    prepare(tmp_path / "toy")
    assert asked == [("HuggingFaceFW/fineweb-edu", "first")] * 2


class Repository:
    """The two functions of the hub that are needed, over a local folder; `fetched` lists what was downloaded."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.fetched, self.broken = folder, [], None
        monkeypatch.setattr(huggingface_hub, "dataset_info", self.info)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def info(self, repository, revision=None):
        names = [
            path.relative_to(self.folder).as_posix()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        ]
        return types.SimpleNamespace(
            sha="abc", siblings=[types.SimpleNamespace(rfilename=name) for name in names]
        )

    def download(self, repository, name, repo_type, revision, local_dir):
        assert (repository, repo_type, revision) == ("user/shards", "dataset", "abc")
        if name == self.broken:
            raise HTTPError("connection lost")
        self.fetched.append(name)
        (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(self.folder / name, local_dir / name))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Six shards of GPT-2 tokens and a README."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "README.md").write_text("ready shards")
    for number in range(6):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, 100
        tokens = np.arange(100, dtype="<u2")
        tokens[: number + 2] = 50256
        name = f"made_elsewhere_{'train' if number else 'val'}_{number:06d}.bin"
        (folder / name).write_bytes(header.tobytes() + tokens.tobytes())
    return Repository(folder, monkeypatch)


FETCH = ["--pretokenized", "--dataset", "user/shards"]


def test_ready_shards_are_taken_as_they_are(tmp_path, repository, capsys):
    out = tmp_path / "out"
    prepare_fineweb.main([*FETCH, "--shards", "3", "--out_dir", str(out)])
    prepare_fineweb.main([*FETCH, "--shards", "3", "--out_dir", str(out)])
    assert (
        "is prepared already: val 100 tokens of 2 documents, train 200 tokens of 7 documents"
        in capsys.readouterr().out
    )
    prepare_fineweb.main([*FETCH, "--out_dir", str(out)])
    assert repository.fetched == [
        path.name
        for path in sorted(repository.folder.glob("*.bin"), key=lambda path: path.name[-10:])
    ]
    assert {path.name for path in out.iterdir()} == {*repository.fetched, "meta.json"}
    assert all(
        (out / name).read_bytes() == (repository.folder / name).read_bytes()
        for name in repository.fetched
    )
    train = shards.Shards(out, "train", "always")
    assert (train.total, train.tokenizer, train.vocab_size) == (500, "gpt2", 50257)
    assert train.meta["splits"]["train"]["documents"] == 3 + 4 + 5 + 6 + 7


def test_fetching_goes_on_where_it_stopped(tmp_path, repository, refused):
    out, whole = tmp_path / "out", tmp_path / "whole"
    prepare_fineweb.main([*FETCH, "--out_dir", str(whole)])
    repository.fetched.clear()
    repository.broken = "made_elsewhere_train_000003.bin"
    assert (
        "made_elsewhere_train_000003.bin cannot be fetched from the hub (connection lost): connect"
        in refused(prepare_fineweb.main, *FETCH, "--out_dir", out)[0]
    )
    assert {path.name for path in out.iterdir()} == {*repository.fetched, "meta.json"} and len(
        repository.fetched
    ) == 3
    assert "was interrupted" in refused(lambda flags: shards.Shards(out, "train"))[0]
    repository.broken = None
    prepare_fineweb.main([*FETCH, "--out_dir", str(out)])
    (out / "made_elsewhere_train_000002.bin").unlink()
    prepare_fineweb.main(
        [*FETCH, "--out_dir", str(out), "--shards", "3"]
    )  # no fewer than there were
    assert [name[-8:-4] for name in repository.fetched] == [
        "0000",
        "0001",
        "0002",
        "0003",
        "0004",
        "0005",
        "0002",
    ]
    assert contents(out)[0] == contents(whole)[0] and json.dumps(
        contents(out)[1]["splits"]
    ) == json.dumps(contents(whole)[1]["splits"])


def test_refusals_of_fetching(tmp_path, repository, refused):
    main, out = prepare_fineweb.main, ["--out_dir", tmp_path / "out"]
    assert (
        "give it neither --source nor another --tokenizer"
        in refused(main, *FETCH, "--tokenizer", "bytes", *out)[0]
    )
    (repository.folder / "made_elsewhere_val_000000.bin").write_bytes(b"no shard")
    assert "is no shard" in (line := refused(main, *FETCH, *out)[0]) and line.endswith(
        "name another --dataset"
    )
    (repository.folder / "made_elsewhere_val_000000.bin").unlink()
    assert "user/shards holds no shards *_val_000000.bin" in refused(main, *FETCH, *out)[0]
    assert not (tmp_path / "out").exists()


def test_refusals(tmp_path, hub, refused, monkeypatch, data_dir):
    def offline(*args, **kwargs):
        raise HTTPError("Name or service not known")

    main, out = prepare_fineweb.main, ["--tokenizer", "bytes", "--out_dir", tmp_path / "out"]
    monkeypatch.setattr(huggingface_hub, "dataset_info", offline)
    told = refused(main, *out)
    assert (
        len(told) == 1
        and "cannot be fetched from the hub (Name or service not known): connect and start again"
        in told[0]
    )
    assert "shards is 1: the first is for validation" in refused(main, "--shards", 1, *out)[0]
    assert "shard_tokens is 0" in refused(main, "--dataset", hub, "--shard_tokens", 0, *out)[0]
    assert (
        "already holds a data set with another"
        in refused(main, "--dataset", hub, "--out_dir", data_dir, "--tokenizer", "bytes")[0]
    )
    (tmp_path / "text.txt").write_text("plain")
    assert (
        "give only .jsonl or only .parquet"
        in refused(main, "--source", tmp_path / "text.txt", *out)[0]
    )
    assert "source nowhere does not exist" in refused(main, "--source", "nowhere", *out)[0]
    assert not (tmp_path / "out").exists()
    told = refused(main, "--dataset", hub, "--name", "sample-1BT", *out)
    assert (
        len(told) == 1
        and "'sample-1BT' not found" in told[0]
        and told[0].endswith("or give local files as --source")
    )
    assert (
        "--text_column from text id"
        in refused(main, "--dataset", hub, "--text_column", "body", *out)[0]
    )
    assert (
        "no text is left for the split 'train': give more text or a smaller --shard_tokens"
        in refused(main, "--dataset", hub, *out)[0]
    )
    (hub / "sample" / "10BT" / "002.parquet").write_bytes(b"PAR1 damaged")
    assert "cannot be read" in refused(main, "--dataset", hub, *out)[0]
    assert not (tmp_path / "out").exists()
