"""Tests of text sources: the files of the standard library, and rows of tables."""

import json

import fsspec.utils
import pyarrow
import pyarrow.parquet
import pytest

import prepare_text
from text_data import text_sources


def test_standard_library_has_no_tests_and_no_packages():
    files = text_sources.standard_library_files()
    names = {path.name for path in files}
    assert {"argparse.py", "typing.py", "decoder.py"} <= names
    assert len(files) > 300 and sum(path.stat().st_size for path in files) > 5_000_000
    assert not any({"site-packages", "test", "tests"} & set(path.parts[-4:]) for path in files)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("wrong", [1984, None, ["text"]])
def test_rows_without_text_are_refused_with_file_and_row(tmp_path, refused, kind, wrong):
    path, out = tmp_path / f"rows.{kind}", tmp_path / "out"
    texts = ["2024-01-02", "1.0", "true"]
    if kind == "jsonl":
        lines = [json.dumps({"text": text}) for text in [*texts, wrong]]
        path.write_text("\n".join([lines[0], "", *lines[1:]]) + "\n")
        row, column = 5, "'text'"
    else:
        columns = {"text": texts, "wrong": [wrong] * 3}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        row, column = 1, "'wrong'"
    flags = ["--text_column", column.strip("'"), "--out_dir", out, "--val_every", 2]
    (line,) = refused(prepare_text.main, path, *flags)
    assert f"{path}, row {row}: column {column} holds {json.dumps(wrong)}, not text" in line
    assert not out.exists()


def test_other_columns_have_any_type(tmp_path):
    """`datasets` infers types from the first rows, and reads traces of agents with a package."""
    others = ["1", "[1, 2]", '{"a": NaN}', '"2024-01-02"', "1e999", "null", r'"\ud800"']
    lines = [f'{{"other": {other}, "text": "{n}e0"}}' for n, other in enumerate(others)]
    lines.append('{"type": "note", "id": "a", "version": 1, "cwd": "/x", "text": "c\\n\\u00e9"}')
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    texts = [*(f"{n}e0" for n in range(7)), "c\né"]
    found = text_sources.read_rows("rows", "text", [path])
    assert list(found) == [((n, (0, n)), text) for n, text in enumerate(texts)]
    loaded, _, _ = text_sources.load_table(str(path), {}, "--data", ["text"])
    assert loaded == [{"text": text} for text in texts]
    assert text_sources.load_table(str(path), {}, "--data", ["text"], limit=2)[0] == loaded[:2]


def test_first_of_several_columns_that_a_row_has(tmp_path, refused):
    lines = ['{"text": "a", "body": "no"}', '{"id": 1, "body": "b"}', '{"text": null, "body": "c"}']
    (tmp_path / "0.jsonl").write_text("\n".join(lines))
    pyarrow.parquet.write_table(pyarrow.table({"body": ["d"], "n": [1]}), tmp_path / "1.parquet")
    table = pyarrow.table({"body": ["no", "f"], "text": ["e", None]})
    pyarrow.parquet.write_table(table, tmp_path / "2.parquet")
    files = sorted(tmp_path.iterdir())
    found = text_sources.read_rows("rows", "text,body", files)
    assert [text for _, text in found] == list("abcdef")
    (tmp_path / "0.jsonl").write_text('{"id": 1, "content": "b"}')
    flags = ["--text_column", "text,body", "--out_dir", tmp_path / "out"]
    (line,) = refused(prepare_text.main, tmp_path / "0.jsonl", *flags)
    assert "row 1: no text in column 'text,body', only columns id content: rename" in line


@pytest.mark.parametrize("is_zstandard", [True, False])
def test_missing_decompressor_is_named(is_zstandard, tmp_path, refused, monkeypatch):
    """zstandard's readers end without an error where a file is truncated."""
    if is_zstandard:  # its readers are no io.IOBase
        monkeypatch.setitem(fsspec.compression.compr, "zstd", lambda file, mode: map(bytes, file))
    known = {"zst": "zstd"} if is_zstandard else {}
    monkeypatch.setattr(fsspec.utils, "compressions", known)
    path = tmp_path / "A.JSONL.ZST"
    path.write_bytes(b'{"text": "a"}\n')
    (line,) = refused(prepare_text.main, path, "--out_dir", tmp_path / "out")
    assert line == f"error: {path}: install backports.zstd to read it, or decompress it"
    assert not (tmp_path / "out").exists()
