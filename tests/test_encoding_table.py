"""The table of encodings in docs/encodings.md."""

import sys

from conftest import NAMES, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import encoding_table  # noqa: E402


def test_committed_table_is_current_and_has_all_encodings():
    page = encoding_table.PAGE.read_text(encoding="utf-8")
    message = "run PYTHONPATH=. python scripts/encoding_table.py"
    assert encoding_table.insert_table(page) == page, message
    listed = {name for cls in encoding_table.encodings() for name in cls.names}
    assert listed == {name for name in NAMES if not name.startswith("test-")}


def test_only_the_table_is_replaced(tmp_path, monkeypatch):
    page = encoding_table.PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "encodings.md"
    copy.write_text(page.replace("| yes |", "| no |"), encoding="utf-8")
    monkeypatch.setattr(encoding_table, "PAGE", copy)
    encoding_table.main()
    assert copy.read_text(encoding="utf-8") == page
