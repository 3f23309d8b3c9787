"""report.py writes tables and plots of records with known numbers."""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import record_examples
from conftest import ROOT

import report

TABLE_2 = "cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512"
SAME_TARGETS = {"name": "same-targets", "targets": 1, "spans": 1000, "overlap": 0.0}


def record(pe, perplexities, run=None, block_size=256, seed=None):
    """Return a record of eval_extrapolation.py; perplexities: {length: value or None}.

    All blocks have the same loss, so that the interval over the text has no width.
    """
    lengths = {}
    for length, value in perplexities.items():
        lengths[str(length)] = value and {
            "perplexity": value,
            "loss": math.log(value),
            "loss_se": 0.004,
            "tokens": 4096,
            "blocks": [math.log(value)] * 4,
        }
    return {
        "run": run or pe,
        "pe": pe,
        "size": "quickstart",
        "block_size": block_size,
        "settings": {},
        "training_text": None,
        "seed": seed,
        "lengths": lengths,
        "data": {"dataset": "toy", "split": "val", "tokenizer": "bytes", "sha256": "1"},
        "protocol": {"name": "segments", "stride": None, "targets": None, "span": 4096},
    }


RECORDS = [
    record("rope", {256: 4.0, 1024: 6.0, 4096: 9.0}),
    record("learnable", {256: 4.5, 1024: None, 4096: None}),
    record("zebra", {256: 5.0, 1024: 5.0, 4096: 5.0}),
    record("cable", {256: 4.1, 1024: 4.05, 4096: 4.125}),
]


def save(path, content):
    """Write JSON to a file, and return its path as text."""
    path.write_text(json.dumps(content))
    return str(path)


def test_a_closed_pipe_ends_the_program_quietly():
    """As `| head` does, which closes its end of the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, ROOT / "report.py", f"{ROOT}/results/quickstart/records.jsonl:cable"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_paper_table_is_only_compared_with_its_metric(tmp_path, refused):
    """Printed perplexities are of decoders, printed nDCG@10 of encoders."""
    masked = save(tmp_path / "masked.json", record("cable", {256: 4.0}) | {"objective": "mlm"})
    retrieval = save(tmp_path / "retrieval.json", record_examples.retrieval())
    speed = save(tmp_path / "speed.json", record_examples.speed())
    decoders, encoders = "cable_table1_fineweb-edu-10b_medium", "cable_table3_mldr_ndcg10_bert"
    refusals = [(masked, decoders), (masked, encoders), (retrieval, decoders)]
    for path, table in [*refusals, (speed, "cable_v1_training-lengths")]:
        (message,) = refused(report.main, path, "--paper", table, "--out_dir", tmp_path / "no")
        assert "but none of the records does: use another --paper" in message
    assert not (tmp_path / "no").exists()
    out = tmp_path / "out"
    report.main([masked, retrieval, "--paper", encoders, "--out_dir", str(out)])
    assert encoders not in (out / "perplexity.md").read_text()
    assert encoders in (out / "retrieval.md").read_text()


def test_reports_at_once_leave_all_files_of_one(tmp_path):
    """Each one writes its number to many files, several times."""

    def write(number):
        for _ in range(5):
            folder = report.Folder(tmp_path)
            for name in range(20):
                folder.add(f"{name}.md", f"{number}\n" * 1000)
            folder.write()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = {path.read_text() for path in tmp_path.iterdir()}
    assert len(contents) == 1 and len(contents.pop().split()) == 1000
    assert len([*tmp_path.iterdir()]) == 20


def test_a_report_that_fails_writes_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(report.Folder, "add_plot", fail)
    path = save(tmp_path / "rope.json", RECORDS[0])
    with pytest.raises(ZeroDivisionError):
        report.main([path, "--out_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_records_of_all_kinds_at_once(tmp_path, capsys):
    """One table per protocol and data set, one of accuracies, one per benchmark.

    A table without numbers has no plot: that of learned positions that end before the context.
    """
    nothing = record("learnable", {512: None}) | {"protocol": SAME_TARGETS}
    accuracy, speed = record_examples.accuracy(), record_examples.speed()
    records = [RECORDS[0], nothing, accuracy, speed]
    records += [accuracy | {"pe": "rope", "run": f"r{n}", "seed": n} for n in (1, 2)]
    paths = [save(tmp_path / f"{n}.json", each) for n, each in enumerate(records)]
    report.main([*paths, "--out_dir", str(tmp_path / "out")])
    first, second = "perplexity_1_toy_val", "perplexity_2_toy_val"
    found = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {f"{stem}.md" for stem in (first, second, "hellaswag", "train")}
    assert found == tables | {name.replace(".md", ".csv") for name in tables} | {
        f"{first}.png",
        "train.png",
    }
    assert "—" in (tmp_path / "out" / f"{second}.md").read_text()
    text = (tmp_path / "out" / "hellaswag.md").read_text()
    labels = [line.split("|")[1].strip() for line in text.splitlines()[2:5]]
    assert labels == ["cable", "rope, seed 1", "rope, seed 2"]
    assert "| 30.00 ± 1.00 | 40.00 ± — |        2 |" in text
    assert "HellaSwag (val): accuracy" in text and "; byte tokens, no" in text


def test_results_on_other_data_are_next_to_the_paper_s(tmp_path):
    """As scripts/generalization.sh calls it: accuracies, perplexities at the training length.

    The paper's RoPE, medium: 27.10%, and 48.09 and 43.03 on WikiText-103 and WikiText-2.
    """
    model = {"pe": "rope", "size": "medium"}
    paths = [save(tmp_path / "h.json", record_examples.accuracy() | model)]
    for dataset, seed, value in (
        ("wikitext103", 1, 40.0),
        ("wikitext103", 2, 41.0),
        ("wikitext2-tokenized", 1, 30.0),
        ("wikitext2-tokenized", 2, 31.0),
    ):
        data = {"data": RECORDS[0]["data"] | {"dataset": dataset}}
        measured = record("rope", {256: value, 512: 9.0}, run=f"{seed}", seed=seed) | model | data
        paths.append(save(tmp_path / f"{dataset}{seed}.json", measured))
    table = "cable_v1_table1_generalization"
    report.main([*paths, "--paper", table, "--out_dir", str(tmp_path / "out")])
    text = (tmp_path / "out" / "generalization.md").read_text()
    assert cells_of(text)[0] == ["encoding", "hellaswag_acc", "wikitext103_ppl", "wikitext2_ppl"]
    row = ["medium, rope", "40.00 (27.10)", "40.50 ± 0.71 (48.09)", "30.50 ± 0.71 (43.03)"]
    assert cells_of(text)[2] == row
    assert "CABLE, version 1, table 1" in text


def speed_entry(seconds, **ratios):
    speed = 1000 / sorted(seconds)[1]
    entry = {"seconds": seconds, "tokens": 1000, "tokens_per_second": speed, "memory": 5e6}
    return entry | {"ratios": ratios, "mfu": None}


def test_speed_tables(tmp_path, capsys):
    """Rows are sorted by context and encoding. Columns without any number are omitted."""
    cases = {
        "cable dense": speed_entry([1, 1, 1], sdpa=0.1),
        "sdpa": speed_entry([0.1, 0.1, 0.1], sdpa=1),
        "cable": speed_entry([0.125] * 3, sdpa=0.8, dense=8) | {"mfu": 0.4},
    }
    record = record_examples.speed()
    record = {"attention": record.pop("train") | {"contexts": {"512": cases}}} | record
    attention = save(tmp_path / "attention.json", record)
    report.main([attention, "--out_dir", str(tmp_path / "out")])
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
    assert (tmp_path / "out" / "attention.png").read_bytes().startswith(b"\x89PNG")

    # Two files: two tables.
    record["attention"]["contexts"]["1024"] = {"cable": speed_entry([0.25] * 3, sdpa=0.9)}
    two = save(tmp_path / "two.json", record)
    report.main([attention, two, "--out_dir", str(tmp_path / "two")])
    *_, last = (tmp_path / "two" / "attention_2.csv").read_text().splitlines()
    assert last == "1024,cable,250,4000,0.9,,,5"
    assert (tmp_path / "two" / "attention_1.png").exists()


def test_refusals(refused, tmp_path):
    out = ("--out_dir", tmp_path / "out")
    assert "no records given" in refused(report.main)[0]
    empty = save(tmp_path / "c.json", {})
    message = refused(report.main, empty, *out)[0]
    assert "c.json is not a record of eval_*.py or bench.py: write it with" in message
    (tmp_path / "d.json").write_text("{")
    assert "d.json cannot be read" in refused(report.main, tmp_path / "d.json", *out)[0]
    assert "e.json does not exist" in refused(report.main, tmp_path / "e.json", *out)[0]
    (line,) = refused(report.main, tmp_path, *out)
    assert f"{tmp_path} cannot be read (not a file): write it with eval_*.py" in line
    assert not (tmp_path / "out").exists()


def cells_of(text):
    """Return the rows of a Markdown table, the line below the header included."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_marks_of_tests_over_seeds_next_to_those_of_the_paper(tmp_path):
    """Table 3 of the Sandwich paper, trained at 512 tokens; here at 256.

    alibi is above sandwich by 0.2 in each of three seeds (the paper: dagger on ArXiv at 2x, none at
    1x), kerple below it at 2x only (asterisk there), rope by 0.1, -0.1, 0.0.
    """
    values = {
        "sandwich": ([5.0, 5.1, 5.2], [5.0, 5.3, 5.2]),
        "alibi": ([5.2, 5.301, 5.4], [5.2, 5.501, 5.4]),
        "kerple": ([5.0, 5.2, 5.1], [4.9, 5.201, 5.1]),
        "rope": ([5.1, 5.0, 5.2], [5.1, 5.2, 5.2]),
    }
    records = [
        record(pe, {256: first[seed], 512: second[seed]}, seed=seed)
        for pe, (first, second) in values.items()
        for seed in range(3)
    ]

    def reported(*records, protocol=SAME_TARGETS):
        paths = [
            save(tmp_path / f"{number}.json", each | {"protocol": protocol})
            for number, each in enumerate(records)
        ]
        flags = ("--paper", "sandwich_table3_arxiv", "--out_dir", str(tmp_path / "out"))
        report.main([*paths, *flags])
        return (tmp_path / "out" / "perplexity.md").read_text()

    text = reported(*records)
    table, caption, comparison, explained, agreement = text.split("\n\n")
    assert cells_of(table)[0] == ["context", "alibi", "kerple", "rope", "sandwich"]
    assert cells_of(table)[2] == ["256", "5.30 ± 0.10†", *["**5.10 ± 0.10**"] * 3]
    numbers = ["5.37 ± 0.15†", "**5.07 ± 0.15∗**", "5.17 ± 0.06", "5.17 ± 0.15"]
    assert cells_of(table)[3] == ["512", *numbers]
    assert "(paired two-sided t-test over 3 seeds, level 0.05)." in caption
    assert cells_of(comparison)[0] == ["encoding", "growth", "order"]
    assert cells_of(comparison)[2:] == [  # at 2x; 3.05 is 15.87 / 5.21
        ["alibi", "1.01† (1.03†)", "4 (3)"],
        ["kerple", "0.99∗ (0.95∗)", "1 (1)"],
        ["rope", "1.01 (3.05†)", "2 (4)"],
        ["sandwich", "1.01 (0.96)", "2 (2)"],
    ]
    assert cells_of(agreement)[2][1:3] == ["35", "8"]
    assert "†: sandwich is significantly better, ∗: worse." in explained
    # An encoding that the table does not have, with one seed, changes no mark.
    text = reported(*records, record("alibi-shift:shift=-1", {256: 4.9, 512: 4.9}))
    assert "5.30 ± 0.10†" in text
    assert "Encodings that the paper's table does not have are not marked." in text
    # One encoding has one seed: no marks.
    assert "t-test" not in reported(*records[:-2])


def test_one_run_of_a_file_can_be_selected(tmp_path, refused):
    path = tmp_path / "records.jsonl"
    records = [record("cable", {256: 4.0}, run="a"), record("rope", {256: 5.0}, run="b:c=1")]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    report.main([f"{path}:b:c=1", "--out_dir", str(tmp_path / "one")])
    assert (tmp_path / "one" / "perplexity.csv").read_text() == "context,rope\n256,5\n"
    flags = ("--out_dir", tmp_path / "no")
    (line,) = refused(report.main, f"{path}:nothing", *flags)
    assert f"{path}:nothing has no records of nothing: " in line
    path.write_text(f"{json.dumps(records[0])}\nnot JSON\n")
    (line,) = refused(report.main, path, *flags)
    assert f"{path}, line 2 is not a record of eval_*.py or bench.py" in line
    assert not (tmp_path / "no").exists()


CHANGES = [("steps", 60), ("lr", 1e-3), ("tokens_per_step", 512), ("training_text", "b" * 64)]
CHANGES += [("block_size", 128), ("size", "tiny"), ("seed", 2)]


def pair_that_differs(folder, name, value):
    """Return the paths of records of cable and rope that differ in one setting, or in the seed."""
    paths = []
    for pe, far in {"cable": 3.9, "rope": 8.0}.items():
        made = record(pe, {128: 4.2, 256: 4.0, 512: far, 4096: far}, seed=1)
        made |= {"training_text": "a" * 64, "step": 200}
        made["settings"] = {"steps": 200, "lr": 2e-3, "tokens_per_step": 1024}
        if pe == "rope":
            (made["settings"] if name in made["settings"] else made)[name] = value
        paths.append(save(folder / f"{pe}.json", made))
    return paths


OTHER_TOKENS = "protocol", {"name": "segments", "span": 8192}


@pytest.mark.parametrize("name, value", [*CHANGES, ("step", 60), ("step", 40), OTHER_TOKENS])
def test_a_table_names_what_else_differs_between_runs(tmp_path, name, value):
    """Above the table, or in its caption if it is in --may_differ; also of runs of a few steps."""
    paths = pair_that_differs(tmp_path, name, value)

    def reported(*flags):
        report.main([*paths, "--out_dir", str(tmp_path / "out"), *flags])
        return (tmp_path / "out" / "perplexity.md").read_text()

    if name in ("seed", "size", "block_size", "protocol"):  # in labels, or in the caption
        assert "omparable" not in reported()
        assert ("text: span 4096 (cable), span 8192 (rope)" in reported()) == (name == "protocol")
        return
    warning = "**Not comparable**, because the runs differ in more than encoding and seed: "
    assert reported().startswith(f"{warning}{name}: ")
    # run_experiment.py names all flags of a training, also those that change no result.
    text = reported("--may_differ", f"{name},micro_batch")
    assert f"Settings that differ: {name}: " in text and "omparable" not in text


def test_check_names_files_that_differ(monkeypatch, tmp_path, refused):
    """A table with another digit; without --check it is written again."""
    for name in ("reproduction", "paper"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    command = "results/reproduction/table2.jsonl --paper " + TABLE_2
    row = {"command": f"python report.py {command} --out_dir results/reproduction"}
    monkeypatch.setattr(report, "ROOT", tmp_path)

    monkeypatch.setattr(report, "read_rows", lambda: [row | {"files": ["perplexity.md"]}])
    report.main(["--all"])
    table = tmp_path / "results" / "reproduction" / "perplexity.md"
    text = table.read_text()
    assert "128" in text
    page = (tmp_path / "results" / "paper" / "README.md").read_text()
    rows = {row[0]: row[1:3] for row in cells_of(page)[4:] if row}
    assert rows[TABLE_2] == ["20", "10"]
    assert rows["cable_table4_fineweb-edu-10b_tiny"] == ["50", "0"]
    table.write_text(text.replace("128", "129"))
    message = "error: not what the records give: results/reproduction/perplexity.md: "
    assert refused(report.main, "--all", "--check") == [message + "python report.py --all true"]
    report.main(["--all"])
    assert table.read_text() == text
    report.main(["--all", "--check"])


def test_every_committed_table_and_plot_has_a_row():
    command = ["git", "ls-files", "results/**.md", "results/**.png"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    made = set()
    for row in report.read_rows():
        *_, flag, out = row["command"].split()
        folder = Path(out) if flag == "--out_dir" else Path(out).parent
        made |= {str(folder / name) for name in row["files"]}
    files = [name for name in listed.stdout.splitlines() if Path(name).name != "README.md"]
    assert len(files) > 9 and {*files} <= made
