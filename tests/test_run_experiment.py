"""run_experiment.py and runtime/scheduler.py: jobs of every script, and a simulated node."""

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from runtime import cli, scheduler

import pytest
import yaml
from conftest import ROOT, search_path, wait_for, write_plugin, write_program
from test_docs import check_python, stop_after_parsing  # noqa: F401

import run_experiment
from benchmarking import cost
from model import GPT, GPTConfig

TRAININGS = yaml.safe_load((ROOT / "tests" / "paper_trainings.yaml").read_text())
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "scripts").glob("*.sh")
    if "python run_experiment.py" in path.read_text()
)
# First words of scripts.
FIRST = {"authors_checkpoint": ["weights.pt"], "half_hour": ["gpt2"]}
# In place of python and torchrun: logs its arguments, devices and times, and fails for `broken`.
PROGRAM = """#!/bin/bash
for word in "$@"; do case $word in *.py) program=$word; break ;; esac; done
case $program in
    run_experiment.py) exec "$PYTHON" "$@" ;;
    prepare_text.py | report.py) exit ;;
    train_gpt.py) out=${@: -1}; mkdir -p "$out"; if [ -f "$out/finished" ]; then exit; fi ;;
    eval_*) echo "record: $RECORD" ;;
esac
start=$(date +%s.%N)
trap 'kill $! 2>/dev/null; exit 0' TERM
sleep "${SECONDS_PER_JOB:-0.2}" & wait $!
echo "$start $(date +%s.%N) ${CUDA_VISIBLE_DEVICES:-} $OMP_NUM_THREADS $0 $*" >>"$JOB_LOG"
case "$*" in *"--pe broken"*) exit 1 ;; esac
if [ -n "${out:-}" ]; then touch "$out/finished"; fi
"""


def commands_of(name, folder, *words):
    """Return the argument lists with which a script calls run_experiment.py."""
    log, program = folder / "calls", folder / "bin" / "python"
    write_program(program, f'#!/bin/bash\nprintf "%s\\0" "$@" >>{log}; printf "\\1" >>{log}\n')
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "scripts" / f"{name}.sh"), *words]
    subprocess.run([*map(str, command)], env=environment, check=True, capture_output=True)
    calls = [line.split("\0")[:-1] for line in log.read_text().split("\1")]
    log.unlink()
    return [call[1:] for call in calls if call[:1] == ["run_experiment.py"]]


def experiment(words):
    end = words.index("--") if "--" in words else len(words)
    config = cli.parse(run_experiment.Config, words[:end], None)
    return run_experiment.Experiment(config, words[end + 1 :])


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_have_the_papers_settings(name, tmp_path, monkeypatch):
    """At full scale: config, length, encoding and further flags of every training of a script."""
    monkeypatch.chdir(ROOT)
    found = set()
    for call in commands_of(name, tmp_path, *FIRST.get(name, [])):
        for job in experiment(call).jobs:
            if job.words[0] == "train_gpt.py":
                flags = {flag: " ".join(values) for flag, values in cli.split_flags(job.words[1:])}
                config, pe = Path(flags.pop("config")), flags.pop("pe")
                for ours in ("data", "seed", "resume", "out_dir", "init_from"):
                    flags.pop(ours, None)
                stem = config.stem if config.parent.name == "configs" else config.parent.name
                others = " ".join(f"{key} {value}" for key, value in sorted(flags.items()))
                found.add(f"{stem} {others}: {pe}")
    expected = {
        f"{recipe}: {pe}" for recipe, each in TRAININGS[name].items() for pe in each.split()
    }
    assert found == expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_dry_run_prints_commands_that_the_programs_accept(
    name, tmp_path, data_dir, monkeypatch, capsys, unregistered, request
):
    """At small scale; commands with encodings get the plugin, and nothing is written."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cost, "measure_cpu", lambda: 1e12)
    plugin = write_plugin(tmp_path / "mine.py", "mine")
    words = [*FIRST.get(name, []), "--scale", "small", "--data", data_dir, "--encodings", "mine"]
    words += ["--plugin", plugin, "--runs", tmp_path / "runs", "--dry_run"]
    for call in commands_of(name, tmp_path, *words):
        run_experiment.main(call)
    output = capsys.readouterr().out
    assert re.search(r"^cost: ", output, re.MULTILINE)
    commands = [shlex.split(line[2:]) for line in output.splitlines() if line.startswith("+ ")]
    assert any(words[1] == "report.py" or words[1:3] == ["plot.py", "biases"] for words in commands)
    request.getfixturevalue("stop_after_parsing")
    for words in commands:
        if "--init_from" in words:  # the config of a run that does not exist yet
            words[2:4] = []
        check_python(words[1:])
        programs = r"train_gpt|eval_\w+\.py|retrieval\.(finetune|evaluate) |biases|export_hf|sample"
        if re.search(programs, " ".join(words)):
            assert str(plugin) in words
    assert not (tmp_path / "runs").exists()


def test_dry_run_measures_this_cpu(tmp_path, monkeypatch, capsys):
    """Of the quick start without data: the vocabulary of bytes."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "measure_cpu", lambda: 1e11)
    words = ["--fixed", "--data", "stdlib", "--train", "quickstart", "--perplexity", "1x"]
    run_experiment.main([*words, "--dry_run", "--eval_tokens", "65536"])
    steps = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())["steps"]
    model = GPT(GPTConfig("quickstart", "cable", 320, 256))
    flops = (steps * 4096 + 65536 / 3) * model.flops_per_token(256)
    *_, total = capsys.readouterr().out.splitlines()
    assert f"; {flops / (0.4 * 1e11) / 3600:.2g} h of this CPU; " in total


def test_an_evaluation_has_at_least_one_window():
    """Otherwise it would be refused after the training."""
    words = "--train quickstart --fixed --data stdlib --perplexity 512,64 --eval_tokens 10"
    (flags,) = [job.words for job in experiment(words.split()).jobs if "--max_tokens" in job.words]
    assert flags[flags.index("--max_tokens") + 1] == "512"


@pytest.mark.parametrize(
    "flags, folder",
    [
        ([], "runs/small"),
        (["--logger", "wandb", "--log_every", "5"], "runs/small"),
        (["--attn_scale", "1"], "runs/attn_scale1/small"),
    ],
)
def test_only_settings_that_change_results_change_the_folder(flags, folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["--train", "wikitext103_tiny", "--data", "wikitext103", "--scale", "small"]
    found = experiment([*words, "--sweep", "lr=1e-3,2e-3", "--", *flags])
    assert found.runs[1].run == Path(f"{folder}/wikitext103-bytes-256/cable-lr2e-3")
    assert found.out == Path(f"{folder}/experiment-lr")  # a sweep has its own report


def test_a_finished_benchmark_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["--runs", str(tmp_path), "--commands", "bench.py train --out {root}/train.json"]
    (tmp_path / "full").mkdir()
    assert experiment(words).jobs[0].state == "waiting"
    (tmp_path / "full" / "train.json").touch()  # bench.py writes it before it measures
    (job,) = experiment(words).jobs[:1]
    assert job.state == "waiting"
    write_program(tmp_path / "python", "#!/bin/bash\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler.Scheduler([job], tmp_path / "full", 1).run()
    assert experiment(words).jobs[0].state == "done"
    other = [*words[:-1], words[-1].replace("train", "train attention", 1)]
    assert experiment(other).jobs[0].state == "waiting"


def test_each_job_has_a_log_of_its_own(tmp_path):
    jobs = [scheduler.Job(name, []) for name in ("train rope+cable", "train rope_cable", "a", "a")]
    logs = {scheduler.Scheduler(jobs, tmp_path, 1).log_of(job) for job in jobs}
    assert len(logs) == 4


@pytest.mark.parametrize("status, records", [("true", ["x.json"]), ("false", [])])
def test_a_record_that_was_written_during_an_interruption_counts(tmp_path, status, records):
    report = scheduler.Job("report a", ["report.py", "--out_dir", str(tmp_path)])
    job = scheduler.Job("a", ["eval_recall.py", "runs/a"], reports=[report], state="running")
    runner = scheduler.Scheduler([report, job], tmp_path, 1)
    runner.log_of(job).write_text("record: x.json\n")
    runner.running[job], runner.signal = subprocess.Popen([status]), signal.SIGTERM
    runner.running[job].wait()
    runner.collect()
    assert (job.state, report.records) == ("interrupted", records)


def test_time_left_does_not_count_what_was_finished_before(tmp_path, capsys):
    """In a minute from 40 to 50 of 100 steps: five minutes are left. A training weighs 3."""
    line = '{{"kind": "train", "step": {}, "loss": 1, "tokens_per_second": 1}}\n'
    (tmp_path / "config.yaml").write_text("steps: 100")
    (tmp_path / "log.jsonl").write_text(line.format(40))
    jobs = [scheduler.Job("a", ["-c", "pass"], run=tmp_path), scheduler.Job("b", [])]
    running = scheduler.Scheduler(jobs, tmp_path, 1)
    running.start(jobs[0], 0)
    running.running[jobs[0]].wait()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(line.format(50))
    jobs[0].started = running.started = time.time() - 60
    running.print_progress()
    _, first, all_jobs = capsys.readouterr().out.splitlines()
    assert first == "1 of 2: a, step 50 of 100, 1 tokens/s, 5.0 min left"
    assert all_jobs == "all: 8.3 min left"


def test_progress_on_a_terminal_is_replaced(tmp_path, capsys, monkeypatch):
    """At most once a second, in lines of the terminal; failed jobs are no finished work."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 9)))
    jobs = [scheduler.Job(name, ["-c", "pass"]) for name in ("a" * 40, "b", "c")]
    running = scheduler.Scheduler(jobs, tmp_path, 1)
    running.start(jobs[0], 0)
    jobs[1].state = "failed"
    capsys.readouterr()
    for _ in range(3):
        running.print_progress()
    assert capsys.readouterr().out == f"\x1b[J1 of 3: {'a' * 11}\n\x1b[1F"
    running.print("+ next")
    assert capsys.readouterr().out == "\x1b[J+ next\n"
    running.running[jobs[0]].wait()


def run(folder, *words, devices, wait=True, program=(), **settings):
    """Run an experiment with programs that only log; return the process, or its result."""
    # A process that gets signals is not forked from the server, which is in another group.
    python = shutil.which("python", path=search_path()) if wait else sys.executable
    programs = folder / "programs"
    for name in ("python", "torchrun"):
        write_program(programs / name, PROGRAM)
    environment = os.environ | {"EXPERIMENT_DEVICES": str(devices), "PYTHON": sys.executable}
    environment |= {"JOB_LOG": str(folder / "jobs"), "RECORD": str(folder / "record.json")}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    command = [*(program or [python, "run_experiment.py"]), "--runs", str(folder / "runs"), *words]
    process = subprocess.Popen(
        [*command, "--plugin", str(folder / "broken.py")],
        start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        cwd=ROOT,
        env=environment | settings,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if not wait:
        return process
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture
def node(tmp_path):
    """A folder with an encoding whose training fails."""
    write_plugin(tmp_path / "broken.py", "broken")
    return tmp_path


def logged(folder):
    """Return (start, end, devices, program and flags) of the jobs, in the order of their ends."""
    rows = [line.split(" ", 3) for line in (folder / "jobs").read_text().splitlines()]
    return [(float(start), float(end), devices, words) for start, end, devices, words in rows]


TEN = shlex.split("cable cable-nw alibi fire t5 t5-clip kerple rope learnable broken")
FLAGS = ["--data", "stdlib", "--scale", "smoke", "--train", "fineweb-edu_tiny"]
FLAGS += ["--perplexity", "512,1024", "--encodings", *TEN]


def test_each_device_of_a_node_has_one_job_and_failures_do_not_stop_the_others(node):
    done = run(node, *FLAGS, "--jobs", "8", devices=8)
    assert done.returncode == 1
    assert done.stderr.count("error: failed: ") == 1 and "--pe broken" in done.stderr
    jobs = logged(node)
    assert len(jobs) == 10 + 9  # trainings and evaluations
    assert {devices for _, _, devices, _ in jobs} == {str(number) for number in range(8)}
    for first in jobs:
        for second in jobs:
            if first is not second and first[2] == second[2]:
                assert first[1] <= second[0] or second[1] <= first[0]
    # Nothing is idle while a job waits: ten trainings on eight devices take two rounds.
    assert max(end for _, end, _, _ in jobs) - min(start for start, *_ in jobs) < 3


def test_trainings_on_all_devices_are_evaluated_before_the_next_one(node):
    done = run(node, *FLAGS, devices=8)
    assert done.returncode == 1
    programs = [words.split(" ", 2)[2] for *_, words in logged(node)]
    pattern = r"(train_gpt|eval_extrapolation).*?(?:--pe |smoke/\S+/)(\S+)"
    order = [re.search(pattern, words).groups() for words in programs]
    each = [(name, pe) for pe in TEN for name in ("train_gpt", "eval_extrapolation")]
    assert order == each[:-1]  # the last one, broken, is not evaluated
    assert all(words.startswith("--standalone --nproc_per_node=8 ") for words in programs)


def test_an_interrupted_experiment_continues_and_repeats_nothing(node):
    """The signal reaches the jobs, no other starts, and all end."""
    process = run(node, *FLAGS, "--jobs", "2", devices=2, wait=False, SECONDS_PER_JOB="1")
    wait_for(lambda: len([*node.glob("runs/**/finished")]) >= 2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == "interrupted: run the same command again to continue\n"  # none failed
    assert "\ninterrupted: train " in output
    before = [words for *_, words in logged(node) if "train_gpt.py" in words]
    assert 2 <= len(before) < 10
    assert run(node, *FLAGS, "--jobs", "2", devices=2).returncode == 1
    trained = [words for *_, words in logged(node) if "train_gpt.py" in words]
    assert len(trained) == len(set(trained)) == 10


def processes_of(folder):
    """Return the command lines of the running processes that log to this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"JOB_LOG={folder}/".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize(
    "script, number", [("all_tables", signal.SIGTERM), ("sandwich_table3_5", signal.SIGINT)]
)
def test_no_process_outlives_a_script_of_several_stages(node, script, number):
    """SIGTERM reaches the shell only, Ctrl-C all processes of the terminal."""
    words = ["--scale", "smoke", "--data", "stdlib", "--encodings", "cable", "rope"]
    command = ["bash", f"scripts/{script}.sh"]
    started = {"devices": 2, "wait": False, "program": command, "SECONDS_PER_JOB": "30"}
    process = run(node, *words, **started, EXPERIMENT_SCRIPTS=str(os.getpid()))
    wait_for(lambda: any("train_gpt.py" in words for words in processes_of(node)))
    send = os.killpg if number == signal.SIGINT else os.kill
    send(process.pid, number)
    process.communicate(timeout=120)
    assert process.returncode
    wait_for(lambda: not processes_of(node), seconds=20)  # less than a job takes


def test_a_report_keeps_the_records_of_earlier_calls(node):
    """As an interrupted call leaves them; those of runs that were removed are left out."""
    report = node / "runs" / "smoke" / "experiment"
    report.mkdir(parents=True)
    (node / "kept.json").write_text("{}")
    (report / "records.json").write_text(f'["{node}/kept.json", "{node}/removed.json"]')
    (node / "record.json").write_text("{}")
    done = run(node, *FLAGS[:-10], "cable", devices=0)
    assert done.returncode == 0, done.stderr
    written = [line for line in done.stdout.splitlines() if line.startswith("+ python report.py")]
    assert written[-1].endswith(f"{node}/kept.json {node}/record.json")
