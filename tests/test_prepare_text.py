"""Tests of prepare_text.py: text, jsonl and parquet as shards, resuming, and input errors."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from conftest import ROOT, documents_of

import prepare_text
from text_data import text_sources, tokenization, tokenizer


def prepare(*arguments):
    prepare_text.main([str(argument) for argument in arguments])


def test_validation_text_among_the_sources_is_not_trained_on(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"all of {name}")
    out = tmp_path / ".out"
    prepare(tmp_path, "--val", tmp_path / "." / "b.txt", "--out_dir", out)
    assert documents_of(out, "train") == ["all of a", "all of c"]
    assert documents_of(out, "val") == ["all of b"]


# JSON lines may be called .json, as in C4.
KINDS = ["jsonl", "JSONL", "ndjson", "jsonl.gz", "json", "json.gz", "parquet", "Parquet"]
# As in the data sets of scripts/sandwich_table3_5.sh, where `meta` changes its type.
META = {"title": None, "word_count": 3, "reddit_scores": [1, 2]}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_tables_are_documents(tmp_path, kind):
    texts = [f"row {n}\nnaïve" for n in range(6)]
    rows = [{"id": n, "body": text, "meta": META} for n, text in enumerate(texts)]
    path, out = tmp_path / f"rows.{kind}", tmp_path / "out"
    if kind == "jsonl":
        rows[3]["meta"] = {"title": 3.5}
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind.lower() == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_bytes(gzip.compress(lines) if kind.endswith("gz") else lines)
    prepare(path, "--text_column", "body", "--out_dir", out, "--val_every", 3)
    assert documents_of(out, "train") == [texts[n] for n in (0, 1, 3, 4)]
    assert documents_of(out, "val") == [texts[n] for n in (2, 5)]


# With line breaks, and without any but with characters of one, two and four bytes.
@pytest.mark.parametrize("line", ["abc\n", "aé😀"])
def test_long_files_are_read_in_pieces(tmp_path, monkeypatch, line):
    monkeypatch.setattr(text_sources, "PIECE_CHARACTERS", 50)
    text = line * 300
    (tmp_path / "long.txt").write_bytes(text.encode())
    pieces = list(prepare_text.read_text(tmp_path / "long.txt"))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 100
    (tmp_path / "val.txt").write_text("val")
    out = tmp_path / "out"
    prepare(tmp_path / "long.txt", "--val", tmp_path / "val.txt", "--out_dir", out)
    assert documents_of(out, "train") == [text]


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_short_documents_are_left_out(tmp_path, monkeypatch, refused, piece):
    """A document of 40 bytes has 41 tokens, whatever the pieces that it is tokenized in."""
    monkeypatch.setattr(text_sources, "PIECE_CHARACTERS", piece)
    monkeypatch.setattr(tokenization, "BATCH_CHARACTERS", piece)
    texts = [str(n) * size for n, size in enumerate((39, 40, 39, 40, 100, 1, 99))]
    path, out = tmp_path / "rows.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(path, "--out_dir", out, "--val_every", 4, "--min_tokens", 41)
    assert documents_of(out, "train") == [texts[n] for n in (1, 4, 6)]
    assert documents_of(out, "val") == [texts[3]]
    other = [path, "--out_dir", out, "--val_every", 4]
    assert "another source" in refused(prepare_text.main, *other)[0]


def test_finished_preparation_is_not_repeated(tmp_path, capsys):
    """Shards in a source folder are not sources."""
    (tmp_path / "a.txt").write_text("one line\n" * 50)
    flags = [tmp_path, "--out_dir", tmp_path / "out"]
    prepare(*flags)
    written_at = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    prepare(*flags)
    printed = capsys.readouterr().out
    assert "is already prepared" in printed and "are skipped" not in printed
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == written_at


@pytest.mark.parametrize("offset", [0, 1_100_000, 2_199_990])
def test_changed_text_of_the_same_size_is_recognized(tmp_path, offset):
    """The change is at the beginning, in the middle or at the end of the file."""
    text = "a line of some length\n" * 100_000
    (tmp_path / "a.txt").write_text(text)
    before = text_sources.fingerprint([tmp_path / "a.txt"])
    (tmp_path / "a.txt").write_text(text[:offset] + "A" + text[offset + 1 :])
    assert text_sources.fingerprint([tmp_path / "a.txt"]) != before


PART, BAD_BYTES = slice(0, 100), slice(0, 40)


@pytest.mark.parametrize(
    "suffix, kept, end",
    [("gz", PART, b""), ("xz", PART, b""), ("bz2", PART, b""), ("xz", BAD_BYTES, b"?" * 500)]
    + [("zst", PART, b""), ("zst", slice(None), bytes(100)), ("zst", slice(0), b'{"text": "x"}\n')],
)
def test_damaged_download_is_refused_and_then_replaced(tmp_path, refused, suffix, kept, end):
    """A truncated file, wrong bytes, zeros behind the last frame, and another format.

    It does not prevent preparing the complete file later.
    """
    path, out = tmp_path / f"rows.jsonl.{suffix}", tmp_path / "out"
    with fsspec.open(path, "wb", compression="infer") as file:
        file.write(b"".join(json.dumps({"text": f"row {n}"}).encode() + b"\n" for n in range(500)))
    whole = 2 * path.read_bytes()  # a file may have several frames
    path.write_bytes(whole[kept] + end)
    (line,) = refused(prepare_text.main, path, "--out_dir", out)
    assert f"{path} cannot be read" in line
    path.write_bytes(whole)
    prepare(path, "--out_dir", out)
    assert len(documents_of(out, "train")) == 950


def test_skipped_files_are_listed_with_reason_and_remedy(tmp_path, capsys):
    """Five files are listed, the others counted. A file passed by name is read."""
    crawl, out = tmp_path / "crawl", tmp_path / "out"
    crawl.mkdir()
    page = crawl / "page.html"
    page.write_text("<p>text</p>\n" * 30)
    (crawl / "a.txt").write_text("text\n" * 50)
    (crawl / "latin.txt").write_bytes("Zo\u00eb".encode("latin-1"))
    (crawl / "paper.PDF").write_text("%PDF-1.7")  # a file that may start as text
    (crawl / "empty.jsonl").write_bytes(b"")
    for n in range(9):
        (crawl / f"z{n}.png").write_bytes(b"\x89PNG\0")
    prepare(crawl, "--out_dir", out)
    printed = capsys.readouterr().out
    for line in ("1 of 14 files are read:", "13 of 14 files are skipped:", "  and 8 more\n"):
        assert line in printed
    for line in ("empty.jsonl: empty", "latin.txt: not UTF-8 text at byte 2: convert it to UTF-8"):
        assert line in printed
    assert "page.html: markup: " in printed and "paper.PDF: markup: " in printed
    assert documents_of(out, "train")[0].startswith("text")
    prepare(crawl, page, "--out_dir", tmp_path / "both")
    assert f"{page}: markup" not in capsys.readouterr().out
    assert documents_of(tmp_path / "both", "train")[1].startswith("<p>text")


def test_errors_come_before_a_tokenizer_is_trained(tmp_path, refused, monkeypatch):
    text, held, out = tmp_path / "a.txt", tmp_path / "held.txt", tmp_path / "out"
    text.write_text("text\n" * 50)
    held.touch()
    monkeypatch.setattr(tokenizer, "train_bpe", None)
    for message, *flags in (
        (f"cannot write {text / 'out'}: Not a directory", "--out_dir", text / "out"),
        ("held.txt is empty: leave it out", "--val", held, "--out_dir", out),
    ):
        (line,) = refused(prepare_text.main, text, "--tokenizer", "bpe:300", *flags)
        assert message in line
    assert not out.exists()


def test_a_split_without_text_removes_what_was_written(tmp_path, refused):
    """19 documents are too few to hold out every 20th; the others are written first."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text('{"text": "row"}\n' * 19)
    flags = ["--tokenizer", "bpe:300", "--shard_tokens", 5, "--out_dir", out]
    (line,) = refused(prepare_text.main, rows, *flags)
    assert "no text is left for the split 'val': pass more sources" in line
    assert not out.exists()


LINE = "the quick brown fox\n"


def write(folder, files):
    """Write {name: text or bytes} into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.mark.parametrize("content", ['[{"text": "a"}]', '{\n  "text": "a"\n}', ""])
def test_json_that_has_no_lines_of_objects_is_no_text(tmp_path, refused, capsys, content):
    folder = write(tmp_path, {"a.txt": LINE * 50, "rows.json": content or "\n"})
    (line,) = refused(prepare_text.main, folder / "rows.json", "--out_dir", tmp_path / "out")
    assert "rows.json is JSON, but not an object in each line: convert it" in line
    prepare(folder, "--out_dir", tmp_path / "out")
    assert "rows.json: JSON, but not" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.txt.bak", "a.txt~", "a.jsonl.sha256", "a.bin.IDX", "b.orig"])
def test_backups_and_checksums_are_left_out(tmp_path, refused, capsys, name):
    folder = write(tmp_path / "in", {"a.txt": LINE * 50, name: LINE * 50})
    prepare(folder, "--out_dir", tmp_path / "out")
    assert f"{name}: a backup, an index or a checksum" in capsys.readouterr().out
    assert len(documents_of(tmp_path / "out", "train")) == 1
    (line,) = refused(prepare_text.main, folder / name, "--out_dir", tmp_path / "other")
    assert "rename it to read it" in line


def test_linked_folders_are_named(tmp_path, capsys):
    for name in ("in", "elsewhere"):
        write(tmp_path / name, {"a.txt": LINE * 50})
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    prepare(tmp_path / "in", "--out_dir", tmp_path / "out")
    assert f"  {tmp_path / 'in' / 'link'}: a linked folder: pass it" in capsys.readouterr().out


@pytest.mark.parametrize(
    "end, reason",
    [
        (b"\0", "NUL bytes"),
        (b"\xe9\n", "not UTF-8 text at byte 2000000: convert it to UTF-8 (iconv"),
        (b"caf\xc3", "at byte 2000003"),  # the first byte of a character
    ],
)
def test_whole_files_are_checked(tmp_path, capsys, refused, end, reason):
    """One bad file does not end the preparation of its folder."""
    files = {"a.txt": LINE * 50, "late.txt": LINE.encode() * 100_000 + end}
    folder = write(tmp_path / "in", files)
    prepare(folder, "--out_dir", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "1 of 2 files are skipped" in printed and reason in printed
    (line,) = refused(prepare_text.main, folder / "late.txt", "--out_dir", tmp_path / "other")
    assert reason in line


@pytest.mark.parametrize("text", ["a fox\n" * 300, "fox " * 500, "fox" * 500, "\u20ac" * 500])
def test_the_end_of_a_single_file_is_held_out(tmp_path, text):
    """From a line, a word, or else a character on: about a 10th, and nothing is lost."""
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    prepare(tmp_path / "a.txt", "--out_dir", tmp_path / "out", "--val_every", 10)
    (train,), (val,) = (documents_of(tmp_path / "out", split) for split in ("train", "val"))
    assert train + val == text and 0.06 * len(text) < len(val) < 0.12 * len(text)
    assert "\n" not in text or train.endswith("\n")


def test_compressed_text_is_read(tmp_path):
    """Without its byte-order mark."""
    packed = {"a.txt.gz": gzip.compress, "b.txt.xz": lzma.compress, "c.txt.bz2": bz2.compress}
    files = {
        name: compress(b"\xef\xbb\xbf" + LINE.encode() * 100) for name, compress in packed.items()
    }
    write(tmp_path / "in", files)
    prepare(tmp_path / "in", "--out_dir", tmp_path / "out")
    assert documents_of(tmp_path / "out", "train") == [LINE * 96] * 3
    assert documents_of(tmp_path / "out", "val") == [LINE * 4] * 3


def test_name_that_is_not_utf8(tmp_path):
    (tmp_path / "in").mkdir()
    with open(os.fsencode(tmp_path / "in") + b"/caf\xe9.txt", "w") as file:
        file.write(LINE * 100)
    command = sys.executable, "prepare_text.py", tmp_path / "in", "--out_dir", tmp_path / "out"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "caf\\udce9.txt" in done.stdout
