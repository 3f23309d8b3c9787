"""Score files, cards and the table: from runs of tiny models, and from hand-made scores."""

import csv
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from conftest import TINY, write_plugin
from score_examples import make_score

import bench
import eval_extrapolation
import eval_recall
import train_gpt
from reporting import figures
from scores import score_file, table

MIXED = "cable:heads=1@1_alibi-shift:shift=-2,heads=1+rope@1"


def write(folder, *scores):
    folder.mkdir(exist_ok=True)
    for score in scores:
        (folder / f"{score['pe']}.json").write_text(json.dumps(score))
    return [str(folder / f"{score['pe']}.json") for score in scores]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


# From runs


def measure(folder, pe, data_dir, *plugin):
    """Do what scripts/score.sh does for one encoding and one seed, with a tiny model."""
    text, task = str(folder / "text" / pe), str(folder / "recall" / pe)
    data = ["--data", str(data_dir), *plugin]
    train_gpt.main([*TINY, *data, "--pe", pe, "--out_dir", text])
    flags = [*TINY, "--objective", "recall", "--block_size", "32", *data, "--pe", pe]
    train_gpt.main([*flags, "--out_dir", task])
    device = ["--device", "cpu", *data]
    eval_extrapolation.main([text, "--lengths", "1x,16x", "--max_tokens", "1024", *device])
    trials = ["--trials", "4", *device]
    eval_recall.main([text, "--distances", "16,64,256", "--passage", "8", *trials])
    eval_recall.main([task, "--distances", "1x,16x", *trials])
    step = ["--context", "16", "--micro_batch", "2", "--repeats", "2", "--vocab_size", "320"]
    speed = [*step, "--model", "quickstart", "--device", "cpu", *plugin]
    bench.main(["train", "--encodings", pe, *speed, "--out", str(folder / "speed" / f"{pe}.json")])


@pytest.fixture(scope="module")
def measured(tmp_path_factory, data_dir):
    """The folder of the runs of three encodings; read-only."""
    folder = tmp_path_factory.mktemp("scores")
    for pe in ("rope", "cable", MIXED):
        measure(folder, pe, data_dir)
    return folder


def test_card_of_runs_and_table(measured, tmp_path, capsys, refused):
    """Names with all characters of a specification work; the score file is compact."""
    out, runs = tmp_path / "scores", ["--runs", str(measured)]
    table.main(["rope", *runs, "--out_dir", str(out)])
    assert "need the score of cable" in capsys.readouterr().out
    assert "score file of cable is missing" in refused(table.main, out / "rope.json")[0]
    table.main(["cable", MIXED, *runs, "--out_dir", str(out)])
    text = capsys.readouterr().out
    rows = [cells(line) for line in text.splitlines() if "|" in line]
    assert {row[1] for row in rows[2:]} == {MIXED, "rope", "cable"}
    assert "trained recall at 16x (%)" in rows[0]
    assert text.count("(criterion, speed): speed / rope ") == 2  # a verdict with its interval
    paths = sorted(map(str, out.glob("*.json")))
    assert f"{out}/{MIXED}.json" in paths and len(paths) == 3
    score = json.loads((out / f"{MIXED}.json").read_text())
    record = json.loads(next((measured / "text" / MIXED).glob("eval_toy_val_*.json")).read_text())
    assert score["text"] == record["data"]
    assert score["training_text"] == record["training_text"]
    loss = record["lengths"]["256"]["loss"]
    assert score["perplexity"]["1"]["256"]["loss"] == pytest.approx(loss, abs=1e-6)
    assert len(score["trained_recall"]) == 4
    timed = json.loads((measured / "speed" / f"{MIXED}.json").read_text())["train"]["contexts"]
    entry = timed["16"][MIXED]
    assert score["speed"] == {"seconds": entry["seconds"], "rope": entry["others"]["rope"]}
    speed = {"model": "quickstart", "micro_batch": 2, "context": 16, "device": "cpu"}
    assert score["budget"]["speed"] == speed
    # Keys and values of 2 layers x 16 channels, and one or two key features of 1 head.
    assert 256 < score["cache_bytes_per_token"] < 300
    table.main([*paths, "--out_dir", str(out)])
    assert MIXED in (out / "scores.md").read_text()
    assert (out / "scores.png").read_bytes().startswith(b"\x89PNG")
    table.main([MIXED, *runs, "--out_dir", str(tmp_path / "again")])
    again = tmp_path / "again" / f"{MIXED}.json"
    assert again.read_bytes() == (out / again.name).read_bytes()  # verifies a file


def test_incomplete_and_ambiguous_runs_are_refused(measured, tmp_path, refused):
    runs = tmp_path / "runs"
    shutil.copytree(measured, runs)
    flags = ("rope", "cable", "--runs", runs, "--out_dir", tmp_path / "scores")
    text = runs / "text" / "rope"
    (record,) = text.glob("eval_recall_*.json")
    copy = text / "eval_recall_again.json"
    shutil.copy(record, copy)
    assert "is a second record of recall of seed 1" in refused(table.main, *flags)[0]
    copy.unlink()
    content = json.loads(record.read_text())
    del content["lengths"]["256"]
    record.write_text(json.dumps(content))
    (line,) = refused(table.main, *flags)
    assert "cable has another budget than rope (recall)" in line
    record.write_text(json.dumps(content | {"step": 4}))  # before the last step
    assert "needs recall of all seeds of rope" in refused(table.main, *flags)[0]
    record.write_text(json.dumps(content | {"pe": "fox"}))
    assert "or not of rope" in refused(table.main, *flags)[0]
    shutil.copy(measured / "text" / "rope" / record.name, record)
    shutil.copytree(text, runs / "text" / "rope-seed2")
    assert "is a second record of" in refused(table.main, *flags)[0]
    for task in ("text", "recall"):
        seed2 = shutil.copytree(
            runs / task / "rope", runs / task / "rope-seed2", dirs_exist_ok=True
        )
        for path in seed2.glob("eval_*.json"):
            record = json.loads(path.read_text()) | {"seed": 2}
            record["settings"]["lr"] /= 2
            path.write_text(json.dumps(record))
    assert "the runs differ in settings" in refused(table.main, *flags)[0]
    shutil.rmtree(runs / "text" / "rope-seed2")
    shutil.copy(runs / "speed" / "cable.json", runs / "speed" / f"{MIXED}.json")
    assert "has no speed of cable:" in refused(table.main, MIXED, *flags[2:])[0]
    assert "of all seeds of fox" in refused(table.main, "fox", *flags[2:])[0]
    assert not (tmp_path / "scores").exists()


def test_a_plugin_is_recorded_by_its_hash(tmp_path, data_dir, unregistered):
    path = write_plugin(tmp_path / "my_encoding.py", "mine")
    runs, plugin = tmp_path / "runs", ["--plugin", str(path)]
    measure(runs, "mine", data_dir, *plugin)
    score = score_file.collect(runs, "mine")
    assert score.plugin == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}


# Hand-made scores


def test_scores_of_another_budget_or_text_are_refused(tmp_path, refused):
    other_text = make_score("fox")
    other_text["text"]["sha256"] = "2" * 64
    other_text["python"] = "3.12.1"
    longer = make_score("kerple")
    longer["budget"]["training"]["steps"] = 1000
    paths = write(tmp_path / "in", make_score("cable"), other_text, longer, make_score("t5"))
    lines = refused(table.main, *paths, "--out_dir", tmp_path / "out")
    assert len(lines) == 1
    assert "fox has another budget than cable" in lines[0] and "(text)" in lines[0]
    assert "prepare the text with Python 3.11.7 (here 3.12.1)" in lines[0]
    (line,) = refused(table.main, paths[0], paths[2])
    assert "kerple has another budget than" in line and "(training)" in line
    fewer = write(tmp_path / "in", make_score("alibi", seeds=(1, 2)))
    (line,) = refused(table.main, paths[0], *fewer)
    assert "(seeds)" in line
    assert not (tmp_path / "out").exists()


def test_a_pattern_without_trained_recall_is_comparable(tmp_path, capsys, refused):
    """Its part c is not measured, and the other scores are compared with each other."""
    pattern = make_score("cable@3_nope@1", loss=1.45, gained=0.02)
    del pattern["budget"]["recall_training"], pattern["budget"]["trained_recall"]
    pattern |= {"trained_recall": {}, "steps_to_95": {}}
    pattern["training_text"] = "4" * 64  # of another build of the same Python
    paths = write(tmp_path / "in", pattern, make_score("rope"), make_score("cable", gained=0.002))
    table.main([*map(str, paths), "--out_dir", str(tmp_path)])
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if "| cable@3_nope@1 |" in line]
    assert cells(row)[2] == "yes yes — yes"
    assert cells(row)[-2:] == ["—", "1.00"]  # trained recall, speed
    other = make_score("fox")
    other["budget"]["recall_training"]["steps"] = 5
    (line,) = refused(table.main, *paths, *write(tmp_path / "in", other))
    assert "fox has another budget than rope (recall_training)" in line


def test_table_and_picture_have_the_best_in_the_order_of_the_rank(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "scatter", lambda points, *_: drawn.extend(points))
    scores = [
        make_score("cable", loss=1.5, gained=0.002),
        make_score("forgets", loss=1.4, gained=0.0),
        make_score("winner", loss=1.45, gained=0.02),
        make_score("rope", loss=2.5, gained=0.02, accuracies=(100.0, 3.0)),
    ]
    scores[2]["steps_to_95"] = {"1": 350, "2": None, "3": 350}
    paths = write(tmp_path / "in", *scores)
    table.main([*map(str, paths), "--out_dir", str(tmp_path)])
    with open(tmp_path / "scores.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert rows[0][-3] == "350, —, 350"
    assert [row[1] for row in rows] == ["winner", "forgets", "cable", "rope"]
    assert rows[0][:6] == ["1", "winner", "yes", "yes", "yes", "yes"]
    assert rows[2][2:4] == ["—", "—"] and rows[3][2:5] == ["no", "yes", "no"]
    assert "4 encodings, 3 seeds" in (tmp_path / "scores.md").read_text()
    losers = [make_score(f"loser{n}", loss=1.6 + n, gained=0.0, speed=0.5) for n in range(13)]
    drawn.clear()
    table.main([*map(str, [*paths, *write(tmp_path / "in", *losers)]), "--out_dir", str(tmp_path)])
    text = (tmp_path / "scores.md").read_text()
    rows = [cells(line) for line in text.split("\n\n")[0].splitlines()[2:]]
    # The best ten and the references.
    assert len(rows) == 12 and "loser7" in text and "loser8" not in text
    assert [row[:3] for row in rows[:3]] == [
        ["1", "winner", "yes yes yes yes"],
        ["2", "forgets", "yes no yes yes"],
        ["—", "cable", "— — yes yes"],
    ]
    assert [pe for pe, *_ in drawn] == [row[1] for row in rows]
    assert rows[0][3:5] == ["0.951", "1.98"]  # exp(1.45 - 1.5), 100 (1 - exp(-0.02))


def test_the_best_ten_are_shown_with_references_that_are_last(tmp_path):
    losses = {"cable": 2.0, "rope": 3.0} | {f"best{n:02}": 1.4 + n / 100 for n in range(14)}
    paths = write(tmp_path, *(make_score(pe, loss=loss) for pe, loss in losses.items()))
    table.main([*map(str, paths), "--out_dir", str(tmp_path)])
    rows = (tmp_path / "scores.md").read_text().split("\n\n")[0].splitlines()[2:]
    expected = [*(f"best{n:02}" for n in range(10)), "cable", "rope"]
    assert [cells(row)[1] for row in rows] == expected


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"recall": make_score("fox", seeds=(1,))["recall"]}, "other seeds than the budget"),
        ({"recall": {}}, "other seeds than the budget"),
        ({"recall": {"1": {}, "2": {}, "3": {}}}, "expected object of length >= 1 at recall"),
        ({"speed": {"seconds": [1.0]}}, "missing required field rope"),
        ({"text": {"dataset": "toy", "split": "val"}}, "missing required field tokenizer"),
        ({"perplexity": {"1": {"256": {"loss": 1.0}}}}, "missing required field"),
        ({"budget": {"seeds": [1, 2, 3], "training": {}}}, "missing required field lr"),
        ({"parameters": -1}, "expected int >= 1 at parameters"),
    ],
)
def test_files_that_are_no_scores_are_refused(change, problem, tmp_path, refused):
    (path,) = write(tmp_path / "in", make_score("fox"))
    Path(path).write_text(json.dumps(make_score("fox") | change))
    (line,) = refused(table.main, path)
    assert problem in line and line.endswith(score_file.REMEDY)
