"""Tests of atomic writing, locks and JSON: a file is complete or absent, whatever happens."""

import errno
import fcntl
import glob
import os
import stat

from runtime import files
from runtime.files import atomic, read_json, write_json
from runtime.validation import Count

import msgspec
import pytest

from errors import InputError
from training import run_folder


def test_failure_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "new" / "file"
    with atomic(path) as file:
        file.write(b"old")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), atomic(path) as file:
        file.write(b"half of the n")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


def test_writers_of_one_path_have_files_of_their_own(tmp_path):
    path = tmp_path / "file"
    with atomic(path) as first:
        first.write(b"first")
        with atomic(path) as second:  # must not delete the file of a living writer
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


def test_files_of_killed_writers_are_removed_by_the_next_one(tmp_path):
    """Of whatever file in the folder, but no files of others."""
    names = ["file.0123abcd.partial", "other.89abcdef.partial", "file.partial", "file.x.partial"]
    for name in names:
        (tmp_path / name).write_text("half")
    with atomic(tmp_path / "file") as file:
        file.write(b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"file", *names[2:]}


def test_a_file_that_is_removed_before_it_is_locked_is_opened_again(tmp_path, monkeypatch):
    """As by another writer, which finds no lock."""
    lock, left = fcntl.flock, list(range(3))

    def lock_late(*arguments):
        if left:
            left.pop()
            files.remove_partial_files(tmp_path)
        return lock(*arguments)

    monkeypatch.setattr(files.fcntl, "flock", lock_late)
    with atomic(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x" and not left


def test_content_is_synced_before_the_rename(tmp_path, monkeypatch):
    """The folder is synced after the rename: a power cut leaves the old file or the new one."""
    calls = []

    def watched(name, function):
        def call(*arguments):
            found = os.stat(arguments[0])  # of a descriptor or a path
            calls.append((name, stat.S_ISDIR(found.st_mode), found.st_size))
            return function(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(files.os, name, watched(name, getattr(os, name)))
    with atomic(tmp_path / "file") as file:
        file.write(b"abc")
    content, renamed, folder = calls
    assert (content, renamed) == (("fsync", False, 3), ("replace", False, 3))
    assert folder[:2] == ("fsync", True)


def test_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError), files.atomic_folder(tmp_path / "new") as folder:
        (folder / "a").write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with files.atomic_folder(tmp_path / "new") as folder:
        (folder / "a").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o777 & ~umask


def test_partial_folders_of_another_process_are_kept(tmp_path):
    with files.atomic_folder(tmp_path / "new") as first:
        (first / "a").write_text("first")
        with (
            pytest.raises(InputError, match="cannot write .*new: "),
            files.atomic_folder(tmp_path / "new") as second,
        ):
            (second / "a").write_text("second")
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "b").write_text("in the way")
        assert (first / "a").read_text() == "first"
        (tmp_path / "new" / "b").unlink()
    assert (tmp_path / "new" / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_partial_folders_of_killed_processes_are_hidden_and_removed(tmp_path):
    killed = tmp_path / ".new.0123abcd.partial"
    killed.mkdir()
    (killed / "a").write_text("half")
    assert not glob.glob(f"{tmp_path}/*")  # `runs/*` in a shell
    with files.atomic_folder(tmp_path / "new"):
        assert not killed.exists() and not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_errors_of_the_system_name_the_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = "cannot write .*file/deeper: .*use another folder"
    with pytest.raises(InputError, match=message), atomic(tmp_path / "file" / "deeper") as file:
        file.write(b"x")
    # a folder in the way
    with pytest.raises(InputError, match="cannot write"), atomic(tmp_path) as file:
        file.write(b"x")


def test_json_has_arrays_of_numbers_on_one_line(tmp_path):
    value = {"losses": [1.5, None, -2e-07], "text": '[\n 1,\n 2\n] says "[\n3\n]"'}
    value |= {"names": ["a", "b"], "nested": [[1, 2], [], {"x": [5]}]}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json", "write it") == value
    text = (tmp_path / "a.json").read_text()
    assert ' "losses": [1.5, null, -2e-07],\n' in text and "\n  [1, 2],\n" in text


def test_lock_does_not_wait_for_a_training_or_a_killed_process(tmp_path):
    unlock = run_folder.lock_folder(tmp_path)
    (tmp_path / ".a.json.lock").touch()
    with files.locked(tmp_path / "a.json"):
        assert (tmp_path / ".a.json.lock").exists()
    unlock()
    assert not [*tmp_path.iterdir()]


def test_lock_is_left_out_where_the_file_system_has_none(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "new" / "a.json"
    with files.locked(path), files.locked(path):
        write_json(path, 1)
    run_folder.lock_folder(path.parent)()
    assert [*path.parent.iterdir()] == [path]


def test_lock_ends_with_an_error_and_follows_no_link(tmp_path):
    with pytest.raises(ZeroDivisionError), files.locked(tmp_path / "a.json"):
        raise ZeroDivisionError
    assert not [*tmp_path.iterdir()]
    (tmp_path / ".a.json.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot write"), files.locked(tmp_path / "a.json"):
        pass
    assert not (tmp_path / "elsewhere").exists()


class Numbers(msgspec.Struct):
    n: Count


@pytest.mark.parametrize(
    "text, problem",
    [
        (None, " does not exist"),
        ("", " cannot be read .*"),
        ('{"n": 1', " cannot be read .*"),
        ("[" * 100_000, " cannot be read .*"),
        ('{"n": -1}', ": expected int >= 0 at n"),
    ],
    ids=["missing", "empty", "truncated", "deep", "type"],
)
def test_invalid_json_is_refused(text, problem, tmp_path):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=f"a.json{problem}: make it again"):
        read_json(tmp_path / "a.json", "make it again", Numbers)
