"""The table of encodings in docs/encodings.md."""

from conftest import NAMES

from reporting import encoding_table


def test_committed_table_is_current_and_has_all_encodings():
    page = encoding_table.PAGE.read_text(encoding="utf-8")
    message = "run python -m reporting.encoding_table"
    assert encoding_table.insert_table(page) == page, message
    listed = {name for cls in encoding_table.encodings() for name in cls.names}
    assert listed == {name for name in NAMES if not name.startswith("test-")}
