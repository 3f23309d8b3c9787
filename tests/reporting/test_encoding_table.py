"""The table of encodings in docs/encodings.md."""

from conftest import NAMES

from reporting import encoding_table


def test_committed_table_is_current_and_has_all_encodings():
    page = encoding_table.PAGE.read_text(encoding="utf-8")
    message = "run python -m reporting.encoding_table"
    assert encoding_table.insert_table(page) == page, message
    listed = {name for cls in encoding_table.encodings() for name in cls.names}
    assert listed == {name for name in NAMES if not name.startswith("test-")}


def test_the_program_replaces_only_the_table(tmp_path, monkeypatch):
    page = tmp_path / "encodings.md"
    page.write_text(f"a\n{encoding_table.BEGIN}\nprevious table\n{encoding_table.END}\nb\n")
    monkeypatch.setattr(encoding_table, "PAGE", page)
    encoding_table.main()
    parts = (encoding_table.BEGIN, encoding_table.table(), encoding_table.END)
    assert page.read_text(encoding="utf-8") == "a\n{}\n\n{}\n\n{}\nb\n".format(*parts)
