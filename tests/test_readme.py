"""The README's code runs, its new encoding trains, and its table of encodings is the registry."""

import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import posenc
import report

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_table_of_encodings_is_the_registry():
    rows = re.findall(
        r"^\| (`.*?) \|", README.split("## The encodings")[1].split("##")[0], re.MULTILINE
    )
    listed = {name for row in rows for name in re.findall(r"`([a-z][\w-]*)`", row)}
    assert listed == {name for name in posenc.ENCODINGS if not name.startswith("test-")}


def test_house_lists_every_module_and_program():
    house = README.split("## The house")[1].split("##")[0]
    assert {path.name for path in ROOT.glob("*.py")} == set(re.findall(r"`(\w+\.py)`", house))


def test_code_for_a_model_of_your_own_runs():
    scope = {}
    exec(BLOCKS[1], scope)
    assert scope["y"].shape == (2, 8, 300, 64) and scope["path"] == "sdpa"


def test_the_new_encoding_trains(data_dir, tmp_path):
    """In a process of its own, so that it is an encoding of no other test."""
    flags = [
        "--size",
        "quickstart",
        "--n_embd",
        "16",
        "--block_size",
        "16",
        "--micro_batch",
        "4",
        "--tokens_per_step",
        "64",
        "--steps",
        "3",
        "--val_tokens",
        "64",
        "--data",
        str(data_dir),
        "--pe",
        "recency",
        "--out_dir",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    code = f"{BLOCKS[0]}\nimport train_gpt\ntrain_gpt.main({flags})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0 and "recency, attention by dense" in done.stdout, done.stderr
    weights = torch.load(tmp_path / "run" / "checkpoint_0000003.pt", weights_only=True)["model"]
    assert (weights["posenc.0.r"] != 1).all()


@pytest.mark.parametrize(
    "folder, kind, paper",
    [
        ("quickstart", "perplexity", None),
        ("long_context", "perplexity", None),
        ("encoders/masked", "perplexity", None),
        ("reproduction/older", "perplexity", None),
        ("rope_extended/as_it_is", "perplexity", None),
        ("rope_extended/trained_on", "perplexity", None),
        ("recall", "recall", None),
        ("receptive_field", "receptive_field", None),
        ("reproduction", "perplexity", "cable_table1_wikitext-103_tiny"),
        ("encoders/retrieval", "retrieval", "cable_table3_mldr_ndcg10_bert"),
    ],
)
def test_tables_are_those_of_the_records(folder, kind, paper, tmp_path):
    """What is committed is what report.py makes of the records today, and what the README, or that of the results, shows stands there."""
    made = ROOT / "results" / folder
    flags = ["--paper", str(ROOT / "results" / "paper" / f"{paper}.csv")] if paper else []
    report.main([*map(str, sorted(made.glob("*.json"))), *flags, "--out_dir", str(tmp_path)])
    assert (tmp_path / f"{kind}.md").read_text() == (made / f"{kind}.md").read_text()
    page = (
        (ROOT / "results" / "README.md").read_text()
        if folder.startswith(("rope_extended", "reproduction/older", "recall", "receptive_field"))
        else README
    )
    shown = [
        table
        for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
        if re.match(r"\| +(context|distance)", table)
    ]
    assert any(table in (made / f"{kind}.md").read_text() for table in shown)


@pytest.mark.parametrize(
    "made, kinds, records",
    [
        (
            "sandwich/slopes_and_windows",
            ("perplexity", "receptive_field"),
            ["sandwich/slopes_and_windows/*.json"],
        ),
        ("sandwich/trained_longer", ("perplexity",), ["sandwich/trained_longer/*.json"]),
        (
            "sandwich/encodings",
            ("perplexity", "receptive_field"),
            ["sandwich/encodings/*.json", "--paper", "paper/sandwich_table3_arxiv.csv"],
        ),
        (
            "sandwich/cache",
            ("perplexity",),
            ["sandwich/cache/*.json", "--paper", "paper/sandwich_table5_arxiv.csv"],
        ),
        ("bench/figure3", ("train", "generate", "eval"), ["bench/figure3.json"]),
        ("reproduction/wikitext103", ("perplexity",), ["reproduction/wikitext103/*.json"]),
        (
            "reproduction/rows",
            ("perplexity",),
            [
                "reproduction/rows/*.json",
                "reproduction/cable.json",
                "reproduction/kerple.json",
                "--paper",
                "paper/cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512.csv",
            ],
        ),
    ],
)
def test_tables_that_no_readme_shows_are_those_of_the_records(made, kinds, records, tmp_path):
    results = ROOT / "results"
    flags = [
        path
        for word in records
        for path in ([word] if word.startswith("--") else map(str, sorted(results.glob(word))))
    ]
    report.main([*flags, "--out_dir", str(tmp_path)])
    for kind in kinds:
        assert (tmp_path / f"{kind}.md").read_text() == (results / made / f"{kind}.md").read_text()


@pytest.mark.parametrize("path", re.findall(r"\]\((results/[^)]+)\)", README))
def test_pictures_are_there(path):
    assert (ROOT / path).exists()


def test_the_cost_is_what_the_program_prints(capsys, monkeypatch):
    import train_gpt

    monkeypatch.chdir(ROOT / "tests")  # where there are no data
    told = README.split("--pe rope --dry_run\n\n")[1].split("\n\n")[0]
    train_gpt.main(
        ["--config", str(ROOT / "configs" / "fineweb-edu_medium.yaml"), "--pe", "rope", "--dry_run"]
    )
    assert capsys.readouterr().out.splitlines() == [line.strip() for line in told.splitlines()]
