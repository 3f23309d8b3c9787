"""A file is whole or not there, whatever happens while it is written."""

import os
import stat

import pytest

from errors import InputError
from runtime import files
from runtime.files import atomic, read_json, write_json


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


def test_what_is_renamed_is_on_the_disk(tmp_path, monkeypatch):
    """The content before the name, the name before it is told: a power cut leaves the old file or the new one."""
    calls = []

    def watched(name, function):
        def call(*arguments):
            calls.append(
                (
                    name,
                    stat.S_ISDIR(os.fstat(*arguments).st_mode)
                    if name == "fsync"
                    else os.path.getsize(arguments[0]),
                )
            )
            return function(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(files.os, name, watched(name, getattr(os, name)))
    with atomic(tmp_path / "file") as file:
        file.write(b"abc")
    assert calls == [("fsync", False), ("replace", 3), ("fsync", True)]


def test_a_folder_is_whole_or_not_there(tmp_path):
    with pytest.raises(ZeroDivisionError), files.atomic_folder(tmp_path / "new") as folder:
        (folder / "a").write_text("half")
        1 / 0
    assert not (tmp_path / "new").exists()


def test_refusals_of_the_system_name_the_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write .*file/deeper: .*use another folder"):
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


def test_json_has_arrays_of_numbers_on_one_line(tmp_path):
    value = {
        "losses": [1.5, None, -2e-07, float("inf"), True],
        "text": '[\n 1,\n 2\n] says "[\n3\n]"',
        "names": ["a", "b"],
        "nested": [[1, 2], [3, 4], [], {}],
        "mixed": [1, "a", {"x": [5]}],
    }
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json", "write it") == value
    lines = (tmp_path / "a.json").read_text().splitlines()
    assert lines[1] == ' "losses": [1.5, null, -2e-07, Infinity, true],'
    assert lines[4:6] == ['  "a",', '  "b"']
    assert lines[8:10] == ["  [1, 2],", "  [3, 4],"]
    assert '   "x": [5]' in lines
