"""Committed tables and plots equal what the commands of results/reports.yaml make."""

import shutil

import pytest
from conftest import ROOT

import report

ROWS = report.read_rows()
MADE = [row for row in ROWS if "needs" not in row]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a copy of results/."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "results", folder / "results")
    return folder


@pytest.mark.parametrize("row", MADE, ids=lambda row: str(report.files_of(row)[0]))
def test_committed_files_equal_the_report(row, root):
    assert report.make_again(row, root) == [], f"run python report.py --all ({row['command']})"


def test_every_committed_table_and_plot_has_a_row():
    """README.md is written by hand. Tables of verdicts are next to those that they judge."""
    listed = sorted(file for row in ROWS for file in report.files_of(row))
    patterns = ("**/*.md", "**/*.png", "**/verdicts.csv", "**/faults.csv")
    found = {path for each in patterns for path in (ROOT / "results").glob(each)}
    assert listed == sorted(path.relative_to(ROOT) for path in found if path.name != "README.md")


def test_check_names_files_that_differ(monkeypatch, tmp_path, refused, capsys):
    """A table with another digit; without --check it is written again."""
    (tmp_path / "results").mkdir()
    for name in ("quickstart", "paper"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    rows = [row for row in ROWS if "quickstart" in row["command"] and "index" not in row["command"]]
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "read_rows", lambda: rows)
    table = tmp_path / "results" / "quickstart" / "perplexity.md"
    text = table.read_text()
    table.write_text(text.replace("256", "257"))
    message = "error: not what the records give: results/quickstart/perplexity.md: "
    assert refused(report.main, "--all", "--check") == [message + "python report.py --all true"]
    report.main(["--all"])
    assert table.read_text() == text
    assert "skipped, needs a trained run: results/quickstart/biases.png" in capsys.readouterr().out
