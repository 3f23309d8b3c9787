"""Tests of text sources: the files of the standard library."""

from text_data import text_sources


def test_standard_library_has_no_tests_and_no_packages():
    files = text_sources.standard_library_files()
    names = {path.name for path in files}
    assert {"argparse.py", "typing.py", "decoder.py"} <= names
    assert len(files) > 300 and sum(path.stat().st_size for path in files) > 5_000_000
    assert not any({"site-packages", "test", "tests"} & set(path.parts[-4:]) for path in files)
