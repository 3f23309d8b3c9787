"""Tables and verdicts from records whose numbers are known."""

import csv
import json
import os
import subprocess
import sys

from conftest import ROOT

import report
from reporting import paper, tables


def record(pe, perplexities, run=None, block_size=256, seed=None):
    lengths = {
        str(length): value and {"perplexity": value, "loss_se": 0.004, "tokens": 4096}
        for length, value in perplexities.items()
    }
    return {
        "run": run or pe,
        "pe": pe,
        "size": "quickstart",
        "block_size": block_size,
        "seed": seed,
        "lengths": lengths,
        "data": {"dataset": "toy", "split": "val", "tokenizer": "bytes", "sha256": "1"},
        "protocol": {"name": "segments", "stride": None, "targets": None},
    }


def test_a_reader_may_have_enough():
    """As `| head` has, which closes its end."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, ROOT / "report.py", ROOT / "results/quickstart/cable.json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


RECORDS = [
    record("rope", {256: 4.0, 1024: 6.0, 4096: 9.0}),
    record("learnable", {256: 4.5, 1024: None, 4096: None}),
    record("zebra", {256: 5.0, 1024: 5.0, 4096: 5.0}),
    record("cable", {256: 4.1, 1024: 4.05, 4096: 4.125}),
]


def test_markdown_table():
    assert (
        tables.markdown(*tables.by_context(tables.columns(RECORDS)))
        == """\
| context |    cable |     rope | learnable | zebra |
|--------:|---------:|---------:|----------:|------:|
|     256 |     4.10 | **4.00** |      4.50 |  5.00 |
|   1,024 | **4.05** |     6.00 |         — |  5.00 |
|   4,096 | **4.12** |     9.00 |         — |  5.00 |"""
    )


def test_caption_tells_protocol_tokens_and_error():
    assert tables.caption(RECORDS) == (
        "Perplexity on toy (val, byte tokens); models trained with 256 tokens of context. "
        "Protocol: segments, 4,096 tokens per length; standard error over windows at most 0.4%."
    )


def test_other_runs_of_an_encoding_are_no_seeds_of_one():
    """Another number of steps, of parameters, or another recipe: a column each, by the name of its run."""
    first, second = (
        record("cable", {256: 4.0}, run="a", seed=1),
        record("cable", {256: 4.2}, run="b", seed=2),
    )
    for name, value in (("step", 9), ("parameters", 3), ("recipe", "other")):
        columns = tables.columns([first, {**second, name: value}])
        assert [column.label for column in columns] == ["a", "b"] and all(
            len(column.records) == 1 for column in columns
        )


def test_a_table_is_of_one_text_and_one_question():
    records = [
        record("cable", {256: 4.0}),
        record("rope", {256: 4.0}),
        record("alibi", {256: 4.0}),
        record("fox", {256: 5.0}),
    ]
    records[1]["data"] = {**records[1]["data"], "sha256": "2"}
    records[2]["protocol"] = {**records[2]["protocol"], "span": 512}
    assert sorted(
        [
            "yarn",
            "window:w=120",
            "window:w=30",
            "alibi-shift:shift=-2",
            "alibi-shift:shift=-5",
            "rope",
            "k-cable",
        ],
        key=tables.sort_key,
    ) == [
        "rope",
        "alibi-shift:shift=-5",
        "alibi-shift:shift=-2",
        "k-cable",
        "window:w=30",
        "window:w=120",
        "yarn",
    ]
    assert [[record["pe"] for record in group] for group in tables.alike(records)] == [
        ["cable", "fox"],
        ["alibi"],
        ["rope"],
    ]


def test_seeds_become_a_column_with_their_deviation():
    """4.0 and 4.2: mean 4.1, sample standard deviation 0.1414. At 512 there is one alone, and no number."""
    records = [
        record("cable", {256: 4.0, 512: 3.0}, run="a", seed=1),
        record("cable", {256: 4.2}, run="b", seed=2),
        record("rope", {256: 5.0, 512: 6.0}, seed=1),
    ]
    table = tables.by_context(tables.columns(records))
    assert [line.split("|")[1:-1] for line in tables.markdown(*table).splitlines()[2:]] == [
        ["     256 ", " **4.10 ± 0.14** ", " 5.00 "],
        ["     512 ", "               — ", " 6.00 "],
    ]
    assert tables.caption(records).endswith(
        " Not all seeds were evaluated at 512 (—)."
    ) and "seed" not in tables.caption(records[1:])
    assert tables.comma_separated(*tables.with_deviations(*table)) == (
        "context,cable,cable std,rope\n256,4.1,0.141421,5\n512,,,6\n"
    )


def test_what_is_told_apart():
    """Runs of one seed by their names, of one name by their folders; sizes, training lengths and caches by themselves."""
    named = [
        record("cable", {256: 4.0}, run="lr1"),
        record("cable", {256: 4.1}, run="lr2"),
        record("rope", {256: 5.0}),
    ]
    assert tables.by_context(tables.columns(named))[0] == ["context", "lr1", "lr2", "rope"]
    folders = [
        {**record("cable", {256: 4.0}, seed=seed), "folder": f"lr{seed}", "recipe": seed}
        for seed in (1, 2)
    ]
    assert (
        [column.label for column in tables.columns(folders)]
        == tables.labels(folders)
        == ["lr1/cable", "lr2/cable"]
    )
    other = [
        record("cable", {256: 4.0}, block_size=512),
        record("cable", {256: 4.1}),
        record("rope", {256: 4.0}),
        record("rope", {256: 4.0}) | {"cache_window": 2048},
        record("alibi", {256: 4.0}) | {"size": "tiny"},
        record("alibi", {256: 4.0}) | {"size": "small"},
    ]
    assert [column.label for column in tables.columns(other)] == [
        "cable, 512",
        "cable, 256",
        "alibi, tiny",
        "alibi, small",
        "rope",
        "rope, cache 2,048",
    ]


def test_latex():
    cells = [["context", "k_cable", "rope"], ["256", "**4.10 ± 0.14**", "—"]]
    assert (
        tables.latex(cells)
        == """\\begin{tabular}{lrr}
\\toprule
context & k\\_cable & rope \\\\
\\midrule
256 & \\textbf{4.10 $\\pm$ 0.14} & --- \\\\
\\bottomrule
\\end{tabular}"""
    )


PAPER = paper.Table(
    "CABLE, table 9",
    "Perplexity",
    "fineweb-edu",
    "tiny",
    1024,
    {
        "cable": {512: 30.0, 1024: 20.0, 4096: 18.0},
        "t5": {512: 31.0, 1024: 25.0, 4096: 50.0},
        "learnable": {512: 40.0, 1024: 30.0},
    },
)


def test_the_papers_numbers_beside_ours():
    """Of the same size, length, text and tokens: the difference; of others: the growth, at the same multiples of the training length."""
    same = {"size": "tiny", "data": {"dataset": "fineweb-edu", "split": "val", "tokenizer": "gpt2"}}
    records = [
        record("cable", {512: 33.0, 1024: 19.0}, block_size=1024) | same,
        record("t5-clip", {1024: 25.5}, block_size=1024) | same,
    ]
    cells, text = tables.printed_beside(tables.columns(records), PAPER)
    assert cells == [
        ["context", "", "cable", "t5-clip"],
        ["512", "ours", "33.00", "—"],
        ["", "paper", "30.00", "31.00"],
        ["", "difference", "+10.0%", "—"],
        ["1,024", "ours", "19.00", "25.50"],
        ["", "paper", "20.00", "25.00"],
        ["", "difference", "-5.0%", "+2.0%"],
        ["4,096", "ours", "—", "—"],
        ["", "paper", "18.00", "50.00"],
        ["", "difference", "—", "—"],
    ]
    for other in (
        {"size": "custom"},
        {"data": {**same["data"], "dataset": "fineweb"}},
        {"data": {**same["data"], "tokenizer": "bytes"}},
    ):
        assert (
            tables.printed_beside(tables.columns([records[0] | other]), PAPER)[0][0][0]
            == "training lengths"
        )
    records = [
        record("cable", {256: 4.0, 1024: 4.4}),
        record("learnable", {256: 5.0, 1024: None}),
        record("zebra", {256: 9.0}),
    ]
    cells, text = tables.printed_beside(tables.columns(records), PAPER)
    assert cells == [
        ["training lengths", "", "cable", "learnable"],
        ["0.5", "ours", "—", "—"],
        ["", "paper", "1.50", "1.33"],
        ["1", "ours", "1.00", "1.00"],
        ["", "paper", "1.00", "1.00"],
        ["4", "ours", "1.10", "—"],
        ["", "paper", "0.90", "—"],
    ]


def test_a_papers_table_is_of_its_measure_alone(tmp_path, capsys, refused):
    """An encoder's perplexity, and its retrieval; and a table with nothing in it, beyond the end of a learned one."""
    masked, retrieval, nothing = (
        tmp_path / "masked.json",
        tmp_path / "retrieval.json",
        tmp_path / "nothing.json",
    )
    masked.write_text(json.dumps(record("cable", {256: 4.0}) | {"objective": "mlm"}))
    retrieval.write_text(
        json.dumps(
            {name: value for name, value in record("cable", {}).items() if name != "protocol"}
            | {
                "metric": "nDCG@10",
                "data": {"dataset": "mldr-en", "split": "test", "questions": 9, "documents": 9},
                "lengths": {"512": {"ndcg10": 9.0, "ndcg10_se": 0.1}},
            }
        )
    )
    nothing.write_text(json.dumps(record("learnable", {1024: None})))
    perplexities, ndcg = (
        paper.FOLDER / f"cable_{name}.csv"
        for name in ("table4_fineweb-edu-10b_small", "table3_mldr_ndcg10_bert")
    )
    for path, table in ((masked, perplexities), (masked, ndcg), (retrieval, perplexities)):
        assert (
            "none of the records does: choose another --paper"
            in refused(report.main, path, "--paper", table, "--out_dir", tmp_path / "no")[0]
        )
    assert not (tmp_path / "no").exists()
    report.main(
        [str(masked), str(retrieval), "--paper", str(ndcg), "--out_dir", str(tmp_path / "out")]
    )
    assert (
        "CABLE" not in (tmp_path / "out" / "perplexity.md").read_text()
        and "CABLE" in (tmp_path / "out" / "retrieval.md").read_text()
    )
    report.main([str(nothing), "--out_dir", str(tmp_path / "empty")])
    assert (
        "—" in (tmp_path / "empty" / "perplexity.md").read_text()
        and not (tmp_path / "empty" / "perplexity.png").exists()
    )


def test_files(tmp_path, capsys):
    paths = []
    for entry in RECORDS:
        paths.append(str(tmp_path / f"{entry['pe']}.json"))
        (tmp_path / f"{entry['pe']}.json").write_text(json.dumps(entry))
    report.main([*paths, "--out_dir", str(tmp_path / "out")])
    with open(tmp_path / "out" / "perplexity.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["context", "cable", "rope", "learnable", "zebra"] and rows[2] == [
        "1024",
        "4.05",
        "6",
        "",
        "5",
    ]
    assert (tmp_path / "out" / "perplexity.md").read_text().strip() in capsys.readouterr().out
    assert (tmp_path / "out" / "perplexity.png").read_bytes().startswith(b"\x89PNG")


def test_records_of_all_kinds_at_once(tmp_path, capsys):
    """A table for each protocol and data set, one of accuracies, one for each benchmark."""
    accuracy = {
        "run": "a",
        "pe": "cable",
        "block_size": 256,
        "acc": 0.3,
        "acc_se": 0.01,
        "acc_norm": 0.4,
        "acc_norm_se": None,
        "examples": 1234,
        "data": {},
        "protocol": {},
    }
    curve = {"by_position": {"first": 0, "width": 64, "loss": [1.0, 2.0, 3.0, 4.0]}}
    protocol = {"name": "same-targets", "stride": None, "targets": 1, "spans": 9, "overlap": 0.0}
    same_targets = RECORDS[0] | {
        "protocol": protocol,
        "lengths": {"256": RECORDS[0]["lengths"]["256"] | curve, "512": None},
    }
    records = {"p": RECORDS[0], "q": same_targets, "h": accuracy, "b": TRAIN}
    for name, entry in records.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(entry))
    report.main(
        [*(str(tmp_path / f"{name}.json") for name in records), "--out_dir", str(tmp_path / "out")]
    )
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tabled = {
        f"{stem}.{kind}"
        for stem in ("perplexity_1_toy_val", "perplexity_2_toy_val", "hellaswag", "train")
        for kind in ("md", "csv", "tex")
    }
    assert names == tabled | {
        "perplexity_1_toy_val.png",
        "perplexity_2_toy_val.png",
        "by_position_2_toy_val.png",
        "train.png",
    }
    text = (tmp_path / "out" / "hellaswag.md").read_text()
    assert "| cable | 30.00 ± 1.00 |" in text and "40.00 ± —" in text and "1,234" in text


def test_generalization_beside_the_paper():
    """Medium with RoPE: 27.10% and 48.09, 43.03 on the two WikiTexts; means over seeds of ours."""
    size = {"size": "medium"}
    records = [
        record("rope", {1024: perplexity, 2048: 9.0}, block_size=1024, seed=seed)
        | size
        | {"data": {"dataset": "wikitext103"}}
        for perplexity, seed in ((40.0, 1), (41.0, 2))
    ]
    records += [
        {
            "run": "rope",
            "pe": "rope",
            "acc": 0.25,
            "acc_norm": 0.3,
            "data": {"dataset": "hellaswag"},
        }
        | size,
        {"run": "fox", "pe": "fox", "acc": 0.26, "acc_norm": 0.31, "data": {"dataset": "hellaswag"}}
        | size,
    ]
    assert tables.generalization(tables.on_other_data(records), paper.generalization()) == [
        [
            "size",
            "encoding",
            "HellaSwag acc",
            "acc_norm",
            "paper",
            "wikitext103",
            "paper (wikitext103)",
            "paper (WikiText-2)",
        ],
        ["medium", "rope", "25.00", "30.00", "27.10", "40.50", "48.09", "43.03"],
        ["medium", "fox", "26.00", "31.00", "—", "—", "—", "—"],
    ]


def test_wide_tables_are_turned_round():
    records = [record(f"e{n:02}", {256: 4.0 + n, 512: 9.5 - n}) for n in range(10)]
    lines = tables.markdown(*tables.by_context(tables.columns(records))).splitlines()
    assert len(lines) == 12 and lines[0].split() == ["|", "context", "|", "256", "|", "512", "|"]
    assert lines[2].split() == ["|", "e00", "|", "**4.00**", "|", "9.50", "|"]
    assert lines[-1].split() == ["|", "e09", "|", "13.00", "|", "**0.50**", "|"]


def speed(seconds, tokens=1000, memory=5e6, mfu=None, **ratios):
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / sorted(seconds)[1],
        "ratios": ratios,
        "mfu": mfu,
        "memory": memory,
    }


def bench(name, contexts, micro_batch=4):
    result = {
        "model": "tiny",
        "micro_batch": micro_batch,
        "device": "cpu (2 threads)",
        "dtype": "float32",
        "compile": False,
        "repeats": 3,
        "contexts": contexts,
    }
    return {name: result, "processor": "Abacus", "torch": "2.13.0"}


TRAIN = bench(
    "train",
    {
        "2048": {
            "rope": speed([0.5, 0.4, 0.9], rope=1, nope=0.95),
            "nope": speed([0.4, 0.4, 0.4], rope=1.05, nope=1),
            "learnable": None,
        },
        "512": {
            "rope": speed([0.1, 0.1, 0.1], rope=1, nope=0.5),
            "nope": speed([0.05, 0.05, 0.05], rope=2, nope=1),
            "learnable": speed([0.2, 0.1, 0.3], rope=0.5, nope=0.25, memory=1234.5e6),
        },
    },
)
ATTENTION = bench(
    "attention",
    {
        "512": {
            "cable dense": speed([1, 1, 1], sdpa=0.1),
            "sdpa": speed([0.1, 0.1, 0.1], sdpa=1),
            "cable": speed([0.125] * 3, sdpa=0.8, dense=8, mfu=0.4),
        }
    },
)


def test_tables_of_speeds(tmp_path, capsys):
    """Rows by context and encoding, columns that nobody has a number for left out."""
    for name, record in (("train", TRAIN), ("attention", ATTENTION)):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    report.main(
        [
            str(tmp_path / "train.json"),
            str(tmp_path / "attention.json"),
            "--out_dir",
            str(tmp_path / "out"),
        ]
    )
    assert (
        (tmp_path / "out" / "train.md").read_text()
        == """\
| context |  encoding |    ms | tokens/s | vs rope | vs nope | memory (MB) |
|--------:|----------:|------:|---------:|--------:|--------:|------------:|
|     512 |      rope | 100.0 |   10,000 |   1.000 |   0.500 |         5.0 |
|     512 | learnable | 200.0 |    5,000 |   0.500 |   0.250 |     1,234.5 |
|     512 |      nope |  50.0 |   20,000 |   2.000 |   1.000 |         5.0 |
|   2,048 |      rope | 500.0 |    2,000 |   1.000 |   0.950 |         5.0 |
|   2,048 | learnable |     — |        — |       — |       — |           — |
|   2,048 |      nope | 400.0 |    2,500 |   1.050 |   1.000 |         5.0 |

train: one optimizer step, micro-batch 4. tiny model, float32, cpu (2 threads), not compiled. \
Medians of 3 interleaved rounds; ratios compare speed, above 1 is faster. Abacus, PyTorch 2.13.0.
"""
    )
    with open(tmp_path / "out" / "attention.csv") as file:
        assert list(csv.reader(file)) == [
            ["context", "encoding", "ms", "tokens/s", "vs sdpa", "vs dense", "MFU", "memory (MB)"],
            ["512", "cable", "125", "8000", "0.8", "8", "0.4", "5"],
            ["512", "cable dense", "1000", "1000", "0.1", "", "", "5"],
            ["512", "sdpa", "100", "10000", "1", "", "", "5"],
        ]
    assert (
        "|     512 |       cable |   125.0 |    8,000 |   0.800 |     8.00 | 40.0% |         5.0 |"
        in capsys.readouterr().out
    )
    for name in ("train", "attention"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(refused, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RECORDS[0]))
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "d.json").write_text("{")
    out = ("--out_dir", tmp_path / "out")
    assert "no record named" in refused(report.main)[0]
    told = refused(report.main, tmp_path / "c.json", *out)[0]
    assert "c.json is no record of one of the programs eval_*.py, nor of encodings" in told
    assert "d.json cannot be read" in refused(report.main, tmp_path / "d.json", *out)[0]
    assert "e.json does not exist" in refused(report.main, tmp_path / "e.json", *out)[0]
    for name in ("f", "g"):
        (tmp_path / f"{name}.json").write_text(json.dumps(TRAIN))
    assert (
        "f.json and"
        in (line := refused(report.main, tmp_path / "f.json", tmp_path / "g.json", *out)[0])
        and "all hold train" in line
    )
    assert not (tmp_path / "out").exists()
