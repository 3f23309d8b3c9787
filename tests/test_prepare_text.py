"""Text, jsonl and parquet become the shards that they should, also when the preparation is cut off and started again."""

import bz2
import gzip
import json
import lzma
import os

import numpy as np
import pytest

import prepare_text
from text_data import shards, tokenization

EOT = 256


def documents_of(folder, split):
    tokens = np.concatenate(shards.Shards(folder, split).tokens)
    return [
        bytes(part[1:].astype(np.uint8)).decode()
        for part in np.split(tokens, np.flatnonzero(tokens == EOT))[1:]
    ]


def test_every_nth_document_is_held_out(tmp_path):
    texts = [f"document {n}, naïve\r\n" * n for n in range(1, 8)]
    for n, text in enumerate(texts):
        (tmp_path / f"{n}.txt").write_bytes(text.encode())
    prepare_text.main([str(tmp_path), "--out_dir", str(tmp_path / "out"), "--val_every", "3"])
    assert documents_of(tmp_path / "out", "val") == [texts[2], texts[5]]
    assert documents_of(tmp_path / "out", "train") == [texts[n] for n in (0, 1, 3, 4, 6)]
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert [meta["splits"][split]["documents"] for split in ("train", "val")] == [5, 2]


def test_one_file_keeps_its_end_for_validation(tmp_path):
    lines = [f"line {n}\n" for n in range(100)]
    (tmp_path / "book.txt").write_text("".join(lines))
    prepare_text.main(
        [str(tmp_path / "book.txt"), "--out_dir", str(tmp_path / "out"), "--val_every", "10"]
    )
    (train,), (val,) = (documents_of(tmp_path / "out", split) for split in ("train", "val"))
    assert train + val == "".join(lines) and train.endswith("\n")
    assert 0.05 < len(val) / len(train + val) <= 0.1


def test_val_names_what_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("train me")
    (tmp_path / "b.txt").write_text("hold me out")
    prepare_text.main(
        [
            str(tmp_path / "a.txt"),
            "--val",
            str(tmp_path / "b.txt"),
            "--out_dir",
            str(tmp_path / "out"),
        ]
    )
    assert (documents_of(tmp_path / "out", "train"), documents_of(tmp_path / "out", "val")) == (
        ["train me"],
        ["hold me out"],
    )


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_rows_of_tables_are_documents(tmp_path, kind):
    import pyarrow
    import pyarrow.parquet

    texts = [f"row {n}\nnaïve" for n in range(6)]
    path = tmp_path / f"rows.{kind}"
    lines = "".join(json.dumps({"id": n, "body": text}) + "\n" for n, text in enumerate(texts))
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": range(6), "body": texts}), path)
    else:
        path.write_bytes(gzip.compress(lines.encode()) if kind.endswith("gz") else lines.encode())
    prepare_text.main(
        [str(path), "--text_column", "body", "--out_dir", str(tmp_path / "out"), "--val_every", "3"]
    )
    assert documents_of(tmp_path / "out", "train") == [texts[n] for n in (0, 1, 3, 4)]
    assert documents_of(tmp_path / "out", "val") == [texts[n] for n in (2, 5)]


@pytest.mark.parametrize(
    "line", ["abc\n", "aé😀"]
)  # with line ends, and with characters of one, two and four bytes without
def test_long_files_are_read_in_pieces(tmp_path, monkeypatch, line):
    monkeypatch.setattr(tokenization, "PIECE", 50)
    text = line * 300
    (tmp_path / "long.txt").write_bytes(text.encode())
    pieces = list(prepare_text.text_document(tmp_path / "long.txt", 0, len(text.encode())))
    assert len(pieces) > 20 and "".join(pieces) == text
    assert all(len(piece.encode()) <= 60 for piece in pieces)
    (tmp_path / "val.txt").write_text("val")
    prepare_text.main(
        [
            str(tmp_path / "long.txt"),
            "--val",
            str(tmp_path / "val.txt"),
            "--out_dir",
            str(tmp_path / "out"),
        ]
    )
    assert documents_of(tmp_path / "out", "train") == [text]


def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    for n in range(40):
        (tmp_path / f"{n:02}.txt").write_text(f"{n}: some text\n" * (10 + n % 7))
    flags = [str(tmp_path), "--shard_tokens", "500", "--val_every", "4"]
    prepare_text.main([*flags, "--out_dir", str(tmp_path / ".whole" / "toy")])
    whole = {path.name: path.read_bytes() for path in (tmp_path / ".whole" / "toy").iterdir()}
    assert len(whole) > 8
    flush, flushed = shards.ShardWriter._flush, []

    def flush_and_die(self, following):
        flush(self, following)
        flushed.append(following)
        if len(flushed) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(shards.ShardWriter, "_flush", flush_and_die)
    for starts in range(40):
        try:
            prepare_text.main([*flags, "--out_dir", str(tmp_path / ".part" / "toy")])
            break
        except KeyboardInterrupt:
            pass
    assert starts > 2 and len(flushed) == len(whole) - 1  # no shard twice
    assert {
        path.name: path.read_bytes() for path in (tmp_path / ".part" / "toy").iterdir()
    } == whole


def test_what_is_held_out_is_not_trained_on(tmp_path):
    """Where --val names some of the sources."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"all of {name}")
    prepare_text.main(
        [str(tmp_path), "--val", str(tmp_path / "." / "b.txt"), "--out_dir", str(tmp_path / ".out")]
    )
    assert (documents_of(tmp_path / ".out", "train"), documents_of(tmp_path / ".out", "val")) == (
        ["all of a", "all of c"],
        ["all of b"],
    )


def test_done_is_done(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("one line\n" * 50)
    flags = [str(tmp_path / "a.txt"), "--out_dir", str(tmp_path / "out")]
    prepare_text.main(flags)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    prepare_text.main(flags)
    assert "is prepared already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("place", [0, 2_000_000])
def test_another_text_of_the_same_size_is_another(tmp_path, refused, place):
    """At its beginning or at its end."""
    text = "a line of some length\n" * 100_000
    (tmp_path / "a.txt").write_text(text)
    prepare_text.main([str(tmp_path / "a.txt"), "--out_dir", str(tmp_path / "out")])
    (tmp_path / "a.txt").write_text(text[:place] + "A" + text[place + 1 :])
    assert (
        "already holds a data set with another source"
        in refused(prepare_text.main, tmp_path / "a.txt", "--out_dir", tmp_path / "out")[0]
    )


def test_a_lost_shard_is_made_again(tmp_path, refused, capsys):
    for n in range(8):
        (tmp_path / f"{n}.txt").write_text(f"{n}: some text\n" * 9)
    flags, out = (
        [str(tmp_path), "--val_every", "4", "--shard_tokens", "100", "--out_dir"],
        tmp_path / ".out",
    )
    prepare_text.main([*flags, str(out)])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    prepare_text.main(["--verify", "--out_dir", str(out)])
    assert "all as they were written" in capsys.readouterr().out
    (out / ".out_train_000002.bin").unlink()
    (out / ".out_val_000000.bin").write_bytes(before[".out_val_000001.bin"])
    told = refused(prepare_text.main, "--verify", "--out_dir", out)
    assert "000002.bin does not exist" in told[0] and "000000.bin has been changed" in told[1]
    (out / ".out_val_000000.bin").unlink()
    prepare_text.main([*flags, str(out)])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_the_embedded_corpus_is_the_standard_library_without_tests():
    files = tokenization.standard_library()
    names = {path.name for path in files}
    assert {"argparse.py", "typing.py", "decoder.py"} <= names
    assert len(files) > 300 and sum(path.stat().st_size for path in files) > 5_000_000
    assert not any({"site-packages", "test", "tests"} & set(path.parts[-4:]) for path in files)


def test_gpt2_tokens(tmp_path):
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("needs GPT-2's vocabulary: set TIKTOKEN_CACHE_DIR")
    (tmp_path / "a.txt").write_text("Hello world<|endoftext|>")
    (tmp_path / "b.txt").write_text("val")
    prepare_text.main(
        [
            str(tmp_path / "a.txt"),
            "--val",
            str(tmp_path / "b.txt"),
            "--tokenizer",
            "gpt2",
            "--out_dir",
            str(tmp_path / "out"),
        ]
    )
    read = shards.Shards(tmp_path / "out", "train")
    assert read.tokens[0][:3].tolist() == [50256, 15496, 995] and 50256 not in read.tokens[0][1:]
    assert read.padded_vocab_size == 50304


@pytest.mark.parametrize("length", [5, 8190, 9000])
@pytest.mark.parametrize("before", range(4))
def test_characters_of_several_bytes_wherever_they_lie(tmp_path, length, before):
    text = "a" * before + "字é😀" * length + "。"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("held out")
    prepare_text.main([str(tmp_path), "--out_dir", str(tmp_path / "out"), "--val_every", "2"])
    assert documents_of(tmp_path / "out", "train") == [text]


def test_other_encodings_are_refused_wherever_they_begin(tmp_path, refused):
    (tmp_path / "text.txt").write_bytes(b"plain\n" * 3000 + "café\n".encode("latin-1"))
    told = refused(prepare_text.main, tmp_path / "text.txt", "--out_dir", tmp_path / "out")
    assert told == [
        f"error: {tmp_path}/text.txt is no UTF-8 text at byte 18003: convert it, or leave it out"
    ]


def test_names_of_files_are_no_patterns(tmp_path):
    for name, text in (("data[1].jsonl", "mine"), ("data1.jsonl", "another")):
        (tmp_path / name).write_text(
            json.dumps({"text": text}) + "\n" + json.dumps({"text": f"{text}, too"}) + "\n"
        )
    prepare_text.main(
        [str(tmp_path / "data[1].jsonl"), "--out_dir", str(tmp_path / "out"), "--val_every", "2"]
    )
    assert documents_of(tmp_path / "out", "train") == ["mine"]


@pytest.mark.parametrize("suffix, cut", [("gz", 0), ("xz", 0), ("bz2", 0), ("xz", 40)])
def test_a_download_that_was_cut_off(tmp_path, refused, suffix, cut):
    """One line, and nothing in the way of the whole file, later. (cut: where a byte is wrong instead.)"""
    rows = b"".join(json.dumps({"text": f"row {n}"}).encode() + b"\n" for n in range(500))
    whole = {"gz": gzip, "xz": lzma, "bz2": bz2}[suffix].compress(rows)
    path = tmp_path / f"rows.jsonl.{suffix}"
    path.write_bytes(whole[:cut] + b"?" + whole[cut + 1 :] if cut else whole[: len(whole) // 2])
    told = refused(prepare_text.main, path, "--out_dir", tmp_path / "out")
    assert len(told) == 1 and f"{path} cannot be read" in told[0]
    path.write_bytes(whole)
    prepare_text.main([str(path), "--out_dir", str(tmp_path / "out")])
    assert len(documents_of(tmp_path / "out", "train")) == 475


def test_shards_among_the_sources_are_none_of_them(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text\n" * 50)
    for _ in range(2):
        prepare_text.main([str(tmp_path), "--out_dir", str(tmp_path / "shards")])
        assert "passed over" not in capsys.readouterr().out


def test_refusals(tmp_path, refused, data_dir):
    (tmp_path / "a.txt").write_text("text\n" * 50)
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"text": 5')
    (tmp_path / "other.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "empty").mkdir()
    a, out = tmp_path / "a.txt", ["--out_dir", tmp_path / "out"]
    main = prepare_text.main
    assert refused(main, tmp_path / "no.txt", tmp_path / "nor.txt", *out) == [
        f"error: source {tmp_path / name}.txt does not exist: name another"
        for name in ("no", "nor")
    ]
    for name, content in (
        ("packed.txt.gz", b"\x1f\x8b\x08\0"),
        ("latin.txt", "Zo\u00eb liest, wie fast immer".encode("latin-1")),
    ):
        (tmp_path / name).write_bytes(content)
        assert refused(main, a, tmp_path / name, *out) == [
            f"error: {tmp_path / name} is no UTF-8 text: unpack or convert it, or leave it out"
        ]
    assert "no text, jsonl or parquet files there" in refused(main, tmp_path / "empty", *out)[0]
    assert "--text_column from body" in refused(main, tmp_path / "other.jsonl", *out)[0]
    assert (
        "bad.jsonl cannot be read ("
        in refused(main, tmp_path / "bad.jsonl", "--out_dir", tmp_path / "out2")[0]
    )
    assert "val_every is 1" in refused(main, a, "--val_every", 1, *out)[0]
    (tmp_path / "empty.jsonl").write_text("")
    assert (
        "empty.jsonl holds no rows: mend it, or leave it out"
        in refused(main, tmp_path / "empty.jsonl", *out)[0]
    )
    assert (
        "flag --tokeniser is unknown: did you mean tokenizer?"
        in refused(main, a, "--tokeniser", "gpt2")[0]
    )
    assert (
        "already holds a data set with another source" in refused(main, a, "--out_dir", data_dir)[0]
    )
    (tmp_path / "config.yaml").write_text(f"sources: [{a}]")
    assert refused(main, "--config", tmp_path / "config.yaml", *out) == [
        f"error: {tmp_path}/config.yaml: sources stand on the command line, without a flag: move them there"
    ]
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused(main, a, "--out_dir", tmp_path / "file" / "out")[0]
    (tmp_path / "one.txt").write_text("no line end")
    assert (
        "no text is left for the split 'val'"
        in refused(main, tmp_path / "one.txt", "--out_dir", tmp_path / "out3")[0]
    )
    assert not (tmp_path / "out3").exists()
