"""Tests of text sources: files, tables and errors while reading them."""

import pytest

from errors import InputError
from text_data import text_sources


def test_unreachable_hub_is_reported_with_the_remedy():
    message = (
        r"^it cannot be fetched from the hub \(no route\): connect to the network and run the same "
        "command to resume; or pass a file$"
    )
    with (
        pytest.raises(InputError, match=message),
        text_sources.raise_input_errors("it", "pass a file", is_local=False),
    ):
        raise ConnectionError("no route")


def test_standard_library_has_no_tests_and_no_packages():
    files = text_sources.standard_library_files()
    names = {path.name for path in files}
    assert {"argparse.py", "typing.py", "decoder.py"} <= names
    assert len(files) > 300 and sum(path.stat().st_size for path in files) > 5_000_000
    assert not any({"site-packages", "test", "tests"} & set(path.parts[-4:]) for path in files)
