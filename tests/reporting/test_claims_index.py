"""The index page of claims: one row per claim, with the verdicts of all reports."""

import csv
import re

import pytest
from conftest import ROOT

import report
from reporting.claims import index
from reporting.claims.claim import load

COLUMNS = ("key", "others", "claim", "where", "measured", "outcome", "sizes")
KNOWN = {claim.key: claim for claim in index.known_claims()}
GROWTH = ("growth 1", "", KNOWN["growth 1"].claim, "section 5.1")
SMALL = "quickstart"


def write_verdicts(folder, *rows, **changes):
    """Write verdicts.csv; rows: of COLUMNS, on claims of CABLE."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / index.FILE, "w", newline="") as file:
        made = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        made = [row | {"paper": "CABLE", "table": "perplexity.md"} | changes for row in made]
        made = [{name: value for name, value in row.items() if value is not None} for row in made]
        writer = csv.DictWriter(file, made[0])
        writer.writeheader()
        writer.writerows(made)


def cell_of(folder, key="growth 1"):
    """Return the cell with the verdicts on a claim of section 5.1 of CABLE."""
    report.main(["--index", str(folder), "--out_dir", str(folder)])
    start = f"| section 5.1 | {KNOWN[key].claim} | "
    lines = (folder / "claims.md").read_text().splitlines()
    (cell,) = [line.removeprefix(start) for line in lines if line.startswith(start)]
    return cell.removesuffix(" |")


def test_verdicts_of_several_reports_are_in_the_row_of_their_claim(tmp_path):
    """At 15x instead of 16x, and of another model: the claim is the same."""
    growth = ("growth 1", "", "cable: at 15x", "section 5.1")
    write_verdicts(tmp_path / "small" / "table1", (*GROWTH, "0.982", "holds", SMALL))
    write_verdicts(tmp_path / "full" / "table4", (*growth, "1.1", "fails", "tiny"))
    assert cell_of(tmp_path) == (
        "**fails**: [full/table4](full/table4/perplexity.md)<br>"
        "**holds**: [small/table1](small/table1/perplexity.md)"
    )
    counts = f"{len(KNOWN) - 1} not measured, 1 with different verdicts. "
    assert f"{len(KNOWN)} claims: {counts}" in (tmp_path / "claims.md").read_text()


def test_the_verdicts_that_compare_the_most_encodings_count(tmp_path):
    compared = ("rope", "alibi, rope", "alibi, rope", "alibi", "alibi, rope")
    for number, others in enumerate(compared):
        measured = str(max(number, 2))  # the third report has the records of the second
        row = ("lower 1", others, f"lower than {others}", "section 5.1", measured, "holds", SMALL)
        write_verdicts(tmp_path / str(number), row)
    links = "[1](1/perplexity.md), [4](4/perplexity.md)"
    assert cell_of(tmp_path, "lower 1") == f"**holds** against alibi, rope: {links}"


def test_one_seed_counts_only_if_several_seeds_do_not_agree(tmp_path):
    for name, measured, outcome in (
        ("a", "0.9 (0.8 to 1.0; one seed)", "holds"),
        ("b", "0.9 (0.8 to 1.0; 3 seeds)", "holds"),
        ("c", "1.1 (1.0 to 1.2; one seed)", "fails"),
    ):
        write_verdicts(tmp_path / name, (*GROWTH, measured, outcome, SMALL))
    texts = ("**holds**: [b](b/perplexity.md)", "**fails** (one seed): [c](c/perplexity.md)")
    assert cell_of(tmp_path) == "<br>".join(texts)


def test_committed_verdicts_are_on_claims_of_the_catalog():
    """The index page ignores others."""
    keys = {claim.key for rows in load().values() for claim in rows}
    assert {verdict["key"] for verdict in index.read_verdicts([str(ROOT / "results")])} <= keys


def test_refusals(refused, tmp_path):
    assert "no records or folders given" in refused(report.main, "--index")[0]
    assert "is not a folder" in refused(report.main, "--index", tmp_path / "none")[0]


@pytest.mark.parametrize(
    "column, value, problem",
    [
        ("table", "../../x.md", "expected a name without .* at table"),
        ("outcome", "maybe", "invalid enum value 'maybe' at outcome"),
        ("claim", "a\nb", "expected a text of one line at claim"),
        ("sizes", None, "missing required field sizes"),
    ],
)
def test_a_wrong_verdict_is_named(column, value, problem, refused, tmp_path):
    write_verdicts(tmp_path, (*GROWTH, "0.982", "holds", SMALL), **{column: value})
    (line,) = refused(report.main, "--index", tmp_path, "--out_dir", tmp_path)
    assert re.search(f"verdict 1: {problem}.*: make the report again, or remove the file$", line)
    (tmp_path / index.FILE).write_bytes(b"claim\0\xff")
    (line,) = refused(report.main, "--index", tmp_path, "--out_dir", tmp_path)
    assert f"{tmp_path / index.FILE} cannot be read" in line
    assert not (tmp_path / "claims.md").exists()


def test_texts_of_verdicts_are_escaped(tmp_path):
    folder = tmp_path / "a](javascript:x) |<b>"
    write_verdicts(
        folder, ("growth 1", "<img src=x> [a](b) `c`", *GROWTH[2:], "0.9", "holds", SMALL)
    )
    cell = cell_of(tmp_path)
    assert r"against \<img src=x> \[a\](b) \`c\`: [" in cell
    assert r"[a\](javascript:x) \|\<b>](a%5D%28javascript%3Ax%29%20%7C%3Cb%3E/" in cell
