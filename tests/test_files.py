"""A file is whole or not there, whatever happens while it is written."""

import pytest

from errors import InputError
from files import atomic, read_json, write_json


def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "new" / "file"
    with atomic(path) as file:
        file.write(b"old")
    with pytest.raises(ZeroDivisionError), atomic(path) as file:
        file.write(b"half of the n")
        1 / 0
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


def test_the_new_file_appears_at_the_end_only(tmp_path):
    with atomic(tmp_path / "file") as file:
        file.write(b"content")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_refusals_of_the_system_name_the_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write .*file/deeper: .*choose another folder"):
        with atomic(tmp_path / "file" / "deeper") as file:
            file.write(b"x")
    with pytest.raises(InputError, match="cannot write"):
        with atomic(tmp_path) as file:  # a folder in the way
            file.write(b"x")


def test_json(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert read_json(tmp_path / "a.json", "mend") == {"a": [1, None]}
    with pytest.raises(InputError, match="b.json does not exist: mend it so"):
        read_json(tmp_path / "b.json", "mend it so")
