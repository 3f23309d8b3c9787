"""Tests of text sources: the files of the standard library, and rows of tables."""

import json

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


def test_other_columns_are_not_decoded(tmp_path):
    """`datasets` infers the type of every column from the first rows."""
    others = ["1", "[1, 2]", '{"a": NaN}', '"x"', "1e999", "null"]
    rows = [f'{{"other": {other}, "text": "{n}e0"}}\n' for n, other in enumerate(others)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    found = text_sources.read_rows("rows", "text", [tmp_path / "rows.jsonl"])
    assert list(found) == [(n, f"{n}e0") for n in range(6)]
