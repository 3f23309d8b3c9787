"""Committed tables and plots, by the commands in results/reports.yaml."""

import contextlib
import glob
import importlib
import io
import shlex
import shutil
import tempfile
from pathlib import Path

import yaml

from errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def read_rows() -> list[dict]:
    """Return the rows: "command", "files"; "needs", if not reproducible."""
    path = ROOT / "results" / "reports.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def files_of(row: dict) -> list[Path]:
    """Return the committed files of a row, relative to the repository."""
    *_, flag, out = shlex.split(row["command"])
    folder = Path(out) if flag == "--out_dir" else Path(out).parent
    return [folder / name for name in row["files"]]


def make(row: dict, root: Path) -> list[Path]:
    """Run a row's command in a folder with a copy of results/.

    Returns the files that differ from the committed ones; plots:
    missing ones.
    """
    files = files_of(row)
    folder = root / files[0].parent
    others = {*folder.iterdir()}
    for file in files:
        (root / file).unlink(missing_ok=True)
    _, *words = shlex.split(row["command"])
    if words[0] == "-m":
        del words[0]
    program = importlib.import_module(words.pop(0).removesuffix(".py"))
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()):
        paths = [sorted(glob.glob(word)) or [word] for word in words]
        program.main(sum(paths, []))
    for file in {*folder.iterdir()} - others:
        file.unlink()  # not committed
    return [file for file in files if _content(root / file) != _content(ROOT / file)]


def _content(path: Path) -> bytes | None:
    """Return a file's content, or None; plots depend on Matplotlib's version."""
    if not path.is_file():
        return None
    return b"" if path.suffix == ".png" else path.read_bytes()


def make_all(check: bool) -> None:
    """Make all files; check: compare only. Raises InputError if some differ."""
    differing = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        shutil.copytree(ROOT / "results", root / "results")
        for row in read_rows():
            names = ", ".join(map(str, files_of(row)))
            if "needs" in row:
                print(f"skipped, needs {row['needs']}: {names}")
                continue
            differing += make(row, root)
            for file in () if check else files_of(row):
                shutil.copyfile(root / file, ROOT / file)
            print(f"{'compared' if check else 'wrote'} {names}")
    if check and differing:
        names = ", ".join(map(str, differing))
        raise InputError(f"not what the records give: {names}: python report.py --all true")
