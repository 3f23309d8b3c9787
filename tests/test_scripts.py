"""Experiment scripts: one run end to end at SCALE=smoke, all of them as dry runs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, write_shards

from errors import InputError

sys.path.append(str(ROOT / "scripts"))
import plan  # noqa: E402
from test_docs import check_python, stop_after_parsing  # noqa: E402, F401

EXPERIMENTS = sorted(
    path.name
    for path in (ROOT / "scripts").glob("*.sh")
    if re.search("^experiment ", path.read_text(), re.MULTILINE)
)


SEARCH_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SLEEPER = """
import os, signal, sys, time
def save(number, frame):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print(os.environ["OMP_NUM_THREADS"], "threads")
time.sleep(60)
"""


def script(name, folder, *words, **settings):
    environment = {
        **os.environ,
        "RUNS": str(folder / "runs"),
        "SCALE": "smoke",
        "VIRTUAL_ENV": sys.prefix,
        "INSTALLED": "1",
        "PATH": SEARCH_PATH,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / name), *words],
        env=environment | settings,
        text=True,
        capture_output=True,
    )


def test_experiment_runs_end_to_end_and_resumes(tmp_path, data_dir):
    """One encoding fails: the table has the others, and the script lists the failure at its end.

    A second run skips everything that is finished. The failing encoding is a plugin's.
    """
    broken = tmp_path / "broken.py"
    broken.write_text(
        'import posenc\n\n\nclass Broken(posenc.Encoding):\n    names = ("broken",)\n\n'
        '    def __init__(self, heads, channels, block_size):\n        raise ValueError("mine")\n'
    )
    settings = {
        "DATA": str(data_dir),
        "ENCODINGS": "kerple broken cable",
        "PLUGIN": str(broken),
        "FLAGS": "--verify_data always",
    }
    first = script("table2_dapev2.sh", tmp_path, **settings)
    runs = tmp_path / "runs" / "verify_dataalways" / "smoke"
    assert first.returncode == 1
    assert first.stderr.count("error: failed: python train_gpt.py") == 1
    assert "--pe broken" in first.stderr
    assert "ValueError (mine)" in first.stdout + first.stderr
    table = (runs / "table2_dapev2" / "perplexity.md").read_text()
    assert "| context |" in table and table.index(" cable |") < table.index(" kerple |")
    assert "here and in CABLE, table 2" in table
    assert "same order of encodings" not in table  # smoke runs print no verdicts
    assert (runs / "table2_dapev2" / "perplexity.tex").is_file()
    trained = {path.parent.name for path in runs.glob(f"{data_dir.name}-512/*/log.jsonl")}
    assert trained == {"kerple", "cable"}

    second = script("table2_dapev2.sh", tmp_path, **settings)
    for words in ("is already trained", "already evaluated"):
        assert second.stdout.count(words) == 2
    seeds = script(
        "table2_dapev2.sh", tmp_path, **settings | {"ENCODINGS": "cable", "SEEDS": "1 2"}
    )
    assert seeds.returncode == 0, seeds.stderr
    assert re.search(
        r"\| +\d+\.\d\d ± \d+\.\d\d \|", (runs / "table2_dapev2" / "perplexity.md").read_text()
    )


def test_runs_with_other_flags_have_another_folder(tmp_path, data_dir):
    """Runs and report."""
    settings = {"DATA": str(data_dir), "ENCODINGS": "cable", "DRY_RUN": "1"}
    folders = {}
    for flags in ("", "--attn_scale 1", "--attn_scale 1 --plugin a/b.py"):
        done = script("figure5.sh", tmp_path, FLAGS=flags, **settings)
        found = re.findall(rf"{tmp_path}/runs/(\S*?)smoke/", done.stdout)
        assert found and len(set(found)) == 1, done.stderr
        folders[flags] = found[0]
    assert list(folders.values()) == ["", "attn_scale1/", "attn_scale1-plugina_b.py/"]


@pytest.mark.parametrize(
    "losses, chosen, tried",
    [
        ({"2e-3": 1.8, "4e-3": 1.7, "8e-3": 1.75}, "4e-3", 3),
        ({"2e-3": 1.8, "4e-3": 1.7, "8e-3": 1.65, "0.016": 1.6, "0.032": 1.9}, "0.016", 5),
        ({"2e-3": 1.8, "4e-3": 1.7}, "none", 3),  # the training at 8e-3 failed
        ({"2e-3": 1.8, "4e-3": 1.7, "8e-3": 1.65}, "none", 4),  # that at 0.016 failed
    ],
)
def test_learning_rates_are_doubled_while_the_highest_is_best(losses, chosen, tried, tmp_path):
    for lr, loss in losses.items():
        run = tmp_path / f"small-lr{lr}" / "cable"
        run.mkdir(parents=True)
        (run / "log.jsonl").write_text(f'{{"kind": "val", "step": 1, "loss": {loss}}}\n')
    # Replaces the trainings: the logs exist already.
    run = f"{tmp_path}/small-lr$4/cable"
    train = f'queue_trainings() {{ echo tried; if [ -d "{run}" ]; then runs+=("{run}"); fi; }}'
    tune = "encodings=cable; tune_learning_rates small 1024 2e-3 4e-3 8e-3"
    command = f'source scripts/common.sh; {train}; {tune}; echo "${{rate[cable]:-none}}"'
    done = subprocess.run(
        ["bash", "-c", command, "scripts/common.sh"],
        cwd=ROOT,
        env={**os.environ, "SCALE": "small", "PATH": SEARCH_PATH},
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == ["tried"] * tried + [chosen], done.stderr


def replace_python(folder, code):
    """Return a PATH whose `python` is this shell code."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/bash\n{code}\n")
    python.chmod(0o755)
    return f"{python.parent}:{os.environ['PATH']}"


def test_ladder_tunes_trains_and_evaluates_each_run_when_it_ends(tmp_path, data_dir):
    """cable, rope and the candidate have three seeds; the others have the first."""
    settings = {"SCALE": "full", "DATA": str(data_dir), "JOBS": "1", "NPROC": "1"}
    settings["PATH"] = replace_python(tmp_path, 'if [ "$2" = check ]; then echo 1 1; fi')
    done = script("ladder.sh", tmp_path, "RUNG=2", "DRY_RUN=1", **settings)
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^\+ python (\S+) (.*)", done.stdout, re.MULTILINE)
    trained = [flags.split("/full/")[1] for name, flags in commands if name == "train_gpt.py"]
    rates = [f"ladder_2-512-steps305-warmup_steps25-lr{lr}" for lr in ("1e-3", "2e-3", "4e-3")]
    tuned = [f"{rate}/{pe}" for rate in rates for pe in ("cable", "rope", "alibi")]
    best = "rope:heads_percent=75+alibi:heads_percent=75"
    first = ["cable", "rope", best, "alibi", "rope+cable", "kerple"]
    seeds = [f"{pe}-seed{seed}" for seed in (2, 3) for pe in ("cable", "rope", best)]
    assert trained == tuned + [f"ladder_2-512-lr0.004/{name}" for name in first + seeds]
    evaluated = ["eval_extrapolation.py", "eval_recall.py", "eval_receptive_field.py"]
    of_run = ["train_gpt.py", *evaluated, "-m", "report.py"]  # -m: logs
    assert [name for name, _ in commands[9:]] == ["-m"] + of_run * 12 + ["report.py"]


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS + ["quickstart.sh", "trained_recall.sh"])
def test_dry_run_prints_commands_and_costs_and_writes_nothing(
    name, scale, tmp_path, data_dir, capsys, monkeypatch, unregistered
):
    """The script's calls of plan.py run in this process, which is faster.

    At full scale, there is no data. All commands with encodings get the plugin.
    """
    if scale == "full" and name in (
        "reproduction.sh",
        "quickstart.sh",
        "trained_recall.sh",
    ):
        pytest.skip("there is no full scale")
    log = tmp_path / "calls"
    path = replace_python(tmp_path, f'echo "$@" >>{log}\nif [ "$2" = check ]; then echo 1 1; fi')
    plugin = tmp_path / "mine.py"
    plugin.write_text('import posenc\n\n\nclass Mine(posenc.Encoding):\n    names = ("mine",)\n')
    settings = {"DATA": str(data_dir)} if scale == "small" else {}
    done = script(
        name,
        tmp_path,
        DRY_RUN="1",
        SCALE=scale,
        ENCODINGS="mine",
        PLUGIN=str(plugin),
        OUT=str(tmp_path / "runs"),
        NPROC="1",
        PATH=path,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "+ python report.py" in done.stdout or "+ python plot.py biases" in done.stdout
    for path in re.findall(r"--paper (\S+)", done.stdout):
        assert (ROOT / path).is_file()
    for line in done.stdout.splitlines():
        programs = r"train_gpt|eval_\w+\.py|retrieval\.(finetune|evaluate) "
        if re.search(rf"{programs}|biases|export_hf|bench.py|sample", line):
            assert f"--plugin {plugin}" in line
        if scale == "full" and "eval_extrapolation.py" in line and "--protocol" not in line:
            # All of FineWeb's validation split; the ladder's lower rungs run on CPUs.
            tokens = 131072 if name == "ladder.sh" else 100000000
            assert f"--max_tokens {tokens} " in line
        if scale == "full" and "bench.py train" in line and name != "sandwich_section6.sh":
            sequences = 16 if name.startswith("v1_") else 4  # version 1, section 4.2
            assert f"--micro_batch {sequences} " in line
    monkeypatch.chdir(ROOT)
    check, *costs = [line.split()[1:] for line in log.read_text().splitlines()]
    plan.main(check)
    assert ("--objective mlm" in " ".join(check)) == (name == "table3.sh")
    has_training = name not in ("figure3.sh", "authors_checkpoint.sh")
    assert len(costs) == has_training
    for words in costs:
        plan.main(words)
        assert re.search(r"total of \d+ trainings?: [\d,]+ tokens", capsys.readouterr().out)
    assert not (tmp_path / "runs").exists()


# In place of python: logs its arguments and writes the files that score.sh looks for.
SCORE_PROGRAMS = """
if [ -n "${{CUDA_VISIBLE_DEVICES-all}}" ]; then exit 1; fi # a score is measured on a CPU
(IFS=$'\\t' && echo "$*" >>{log})
case $* in
    "scripts/plan.py check"*) echo 1 1 ;;
    "-m scores.card --missing"*"--references cable "*) echo cable "{pe}" ;;
    "-m scores.card --missing"*) echo rope cable "{pe}" ;;
    "-m scores.speed"*) mkdir -p {folder}/speed && touch "{folder}/speed/$3.json" ;;
    eval_recall.py*) mkdir -p "$2" "$3" && touch "$2/eval_recall.json" "$3/eval_recall.json" ;;
esac
"""


@pytest.mark.usefixtures("stop_after_parsing")
def test_score_runs_the_budget_and_resumes(tmp_path):
    """The programs accept all commands."""
    pe = "window:w=64+rope@1_alibi-shift:shift=-2,heads=2@1"
    folder, log = tmp_path / "runs" / "scores", tmp_path / "log"
    settings = {"SCALE": "full", "SEEDS": "1 2", "OUT": str(tmp_path / "json"), "JOBS": "1"}
    settings |= {"NPROC": "1", "CUDA_VISIBLE_DEVICES": "0"}
    code = SCORE_PROGRAMS.format(log=log, pe=pe, folder=folder)
    settings["PATH"] = replace_python(tmp_path, code)
    done = script("score.sh", tmp_path, "--pe", pe, **settings)
    assert done.returncode == 0, done.stderr
    commands = [line.split("\t") for line in log.read_text().splitlines()]
    for command in commands[1:]:  # the first one is plan.py check
        check_python(command)
    trained = [words[words.index("--out_dir") + 1] for words in commands if "--resume" in words]
    assert trained == [
        f"{folder}/{task}/{name}{seed}"
        for name in ("rope", "cable", pe)
        for task in ("text", "recall")
        for seed in ("", "-seed2")
    ]
    evaluated = [words[0] for words in commands[-7:] if words[0].startswith("eval_")]
    programs = ["eval_extrapolation.py", "eval_recall.py", "eval_receptive_field.py"]
    assert evaluated == [*programs, "eval_recall.py"]
    assert commands[-1][:5] == ["-m", "scores.card", pe, "--runs", str(folder)]

    again = script("score.sh", tmp_path, "--pe", pe, **settings)
    steps = r"^== step \d of 9: (.*); about (\d+) min left"
    first, second = (re.findall(steps, x.stdout, re.MULTILINE) for x in (done, again))
    assert [step[0] for step in first[::3]] == ["train rope", "train cable", f"train {pe}"]
    assert int(first[0][1]) > 30 and {step[1] for step in second} == {"1"}
    assert log.read_text().count("scores.speed") == 3  # none again


def test_costs_of_all_trainings_are_added_up(tmp_path, capsys):
    """Each training counts once; one that starts from a planned one has the settings of that."""

    def training(*flags, out):
        config = [
            "--config",
            str(ROOT / "configs" / "small.yaml"),
            "--data",
            str(tmp_path / "none"),
        ]
        return ["train_gpt.py", *config, *flags, "--out_dir", str(tmp_path / "runs" / out)]

    rope = training("--pe", "rope", "--block_size", "128", out="rope")
    base = f"{tmp_path}/runs/rope"
    flags = ["--init_from", base, "--pe", "nope", "--steps"]
    tuned = ["train_gpt.py", "--config", f"{base}/config.yaml", *flags, "50", "--out_dir", "tuned"]
    kept = ["train_gpt.py", "--config", f"{base}/config.yaml", *flags, "0", "--out_dir", "kept"]
    second = training("--pe", "learnable", "--seed", "2", out="learnable-seed2")
    plan.main(["cost", "small", *rope, *second, *rope, *tuned, *kept])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:-2]] == [
        "runs/rope",
        "runs/learnable-seed2",
        "tuned",
    ]
    n = 320 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128  # byte tokens, padded to 320
    cost_128, cost_256 = (
        6 * parameters + 12 * 4 * 128 * length
        for parameters, length in ((n, 128), (n + 256 * 128, 256))
    )
    flops = 4096 * (1050 * cost_128 + 1000 * cost_256)
    assert lines[-2] == f"total of 3 trainings: {2050 * 4096:,} tokens, {flops:.3g} FLOPs"
    assert f"{n + 256 * 128:,} " in lines[2]
    plan.main(["cost", "full", *rope])
    assert f"{n + (50304 - 320) * 128:,} " in capsys.readouterr().out
    write_shards(tmp_path / "none", [range(110)])
    plan.main(["cost", "small", *rope, *second])
    first, second, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("note: ") and "110 tokens, too few for one window of 128 + 1" in first
    assert second.startswith("note: ") and "of 256 + 1" in second
    assert others[-2].startswith("total of 2 trainings")


def test_check_prints_the_numbers_of_gpus_and_of_jobs(tmp_path, capsys):
    """A script reads NPROC and JOBS; notes on foreign shards go to standard error."""
    for split in ("train", "val"):
        np.arange(100, dtype="<u2").tofile(tmp_path / f"{split}.bin")
    plan.main(["check", "--encodings", "rope", "--data", str(tmp_path)])
    output = capsys.readouterr()
    gpus = torch.cuda.device_count()
    assert output.out == f"{gpus or 1} {1 if gpus else len(os.sched_getaffinity(0))}\n"
    assert "GPT-2" in output.err


@pytest.mark.parametrize(
    "flags, problem",
    [
        (["--encodings", "cable ropee"], "ENCODINGS: unknown positional encoding 'ropee'"),
        (["--encodings", "fire:depth=2"], "ENCODINGS: fire has no option 'depth'"),
        (["--encodings", "rope@0_nope@1"], "ENCODINGS: 'rope@0_nope@1' is no pattern of layers"),
        (["--encodings", "rope+yarn"], "ENCODINGS: rope and yarn cannot be combined"),
        (["--encodings", "cable,rope"], "'cable,rope' has a comma: separate encodings by spaces"),
        (["--encodings", " "], "ENCODINGS is empty"),
        (["--encodings", "cope", "--objective", "mlm"], "cope supports decoders only"),
        (["--data", "docs"], "DATA: .*prepare"),
        (["--plugin", "nowhere.py"], "--plugin nowhere.py cannot be read"),
    ],
)
def test_invalid_encodings_and_data_are_refused(flags, problem, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match=problem) as raised:
        plan.main(["check", *flags])
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize(
    "name, words, problem",
    [
        ("table4.sh", ["SCALE=huge"], "SCALE=huge is unknown: use full, small or smoke"),
        ("reproduction.sh", ["SCALE=full"], "reproduction.sh has no SCALE=full: use small"),
        ("table4.sh", ["SEEDS=1,2"], "SEEDS=1,2 is invalid: use integers separated by spaces"),
        ("quickstart.sh", ["EVAL_TOKENS=1e6"], "EVAL_TOKENS=1e6 is invalid"),
        ("table3.sh", ["NPROC=0"], "NPROC=0 is invalid: use a positive integer"),
        ("table3.sh", ["DATA=nowhere"], "DATA=nowhere is not a folder"),
        ("recall.sh", ["PLUGIN=posenc.py a.py"], "PLUGIN: a.py is not a file"),
        ("ladder.sh", ["RUNG=5"], "RUNG=5 is unknown: use 1, 2, 3 or 4"),
        ("ladder.sh", ["LR=fast"], "LR=fast is invalid: use a number"),
        ("ladder.sh", ["RUNG=3"], "rung 3 needs "),
        ("table4.sh", ["SCAL=small"], "table4.sh has no setting SCAL: use SCALE, NPROC, "),
        ("all_tables.sh", ["OUT=here"], "all_tables.sh has no setting OUT: use "),
        ("table4.sh", ["cable"], "table4.sh does not accept 'cable': pass settings as NAME=value"),
        ("table4.sh", ["DRY_RUN=0"], "DRY_RUN=0 is invalid: use DRY_RUN=1, or leave it out"),
        ("score.sh", ["EVAL_TOKENS=5"], "the budget is fixed: remove EVAL_TOKENS"),
    ],
)
def test_invalid_settings_stop_a_script_before_the_installation(name, words, problem, tmp_path):
    """Nothing is installed: there is no python on the PATH."""
    done = script(name, tmp_path, *words, INSTALLED="", PATH="/usr/bin:/bin")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"error: {problem}") and done.stderr.count("\n") == 1


def test_settings_as_arguments_override_the_environment(tmp_path, data_dir):
    """They precede the flags of a script that has some, and may contain spaces."""
    words = ["ENCODINGS=rope nope", f"OUT={tmp_path / 'out'}", "DRY_RUN=1"]
    done = script(
        "quickstart.sh",
        tmp_path,
        *words,
        "--steps",
        "7",
        ENCODINGS="cable",
        DATA=str(data_dir),
    )
    assert done.returncode == 0, done.stderr
    trainings = [line for line in done.stdout.splitlines() if "train_gpt.py" in line]
    assert [line.split(" --pe ")[1].split()[0] for line in trainings] == ["rope", "nope"]
    assert all("--resume --steps 7" in line for line in trainings)
    assert f"{tmp_path / 'out'}/rope" in trainings[0]


def test_all_tables_runs_the_experiments_of_the_papers(tmp_path, data_dir):
    """All but three with questions of ours and one for released weights; shared runs count once."""
    words = ["DRY_RUN=1", "SCALE=small", "SEEDS=1 2", f"DATA={data_dir}"]
    done = script("all_tables.sh", tmp_path, *words)
    assert done.returncode == 0, done.stderr
    run = re.findall(r"^== scripts/(\S+)", done.stdout, re.MULTILINE)
    others = {"authors_checkpoint.sh", "ladder.sh", "recall.sh", "rope_extended.sh"}
    assert {*EXPERIMENTS} - {*run} == others and len(run) == len({*run})
    folders = re.findall(r" train_gpt.py .* --out_dir (\S+)", done.stdout)
    (number,) = re.findall(r"^total of (\d+) trainings", done.stdout, re.MULTILINE)
    assert int(number) == len({*folders}) < len(folders)


def test_trainings_run_side_by_side(tmp_path):
    """Two at a time, each with half of the cores; a signal reaches both, and no other starts."""
    (tmp_path / "train_gpt.py").write_text(SLEEPER)
    program = [sys.executable, str(ROOT / "scripts" / "side_by_side.py"), "2", "statuses"]
    commands = [["train_gpt.py", "--out_dir", name] for name in ("one", "two", "three")]
    environment = {name: os.environ[name] for name in os.environ if name != "OMP_NUM_THREADS"}
    process = subprocess.Popen(
        [*program, *sum(commands, [])],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [process.stdout.readline() for _ in range(2)]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(lines) == [f"[one] {threads} threads\n", f"[two] {threads} threads\n"]
    process.terminate()
    rest, _ = process.communicate(timeout=60)
    assert sorted(rest.splitlines()) == ["[one] saved", "[two] saved"]
    assert process.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "statuses").read_text().split() == ["0", "0", str(128 + signal.SIGTERM)]
    assert (tmp_path / "one" / "output.txt").read_text() == f"{threads} threads\nsaved\n"
