"""run_experiment.py and runtime/scheduler.py: jobs of every script, and simulated nodes."""

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

from runtime import cli, job_report, scheduler
from runtime.scheduler import Job, Scheduler

import pytest
import yaml
from conftest import ROOT, search_path, wait_for, write_plugin, write_program
from test_docs import check_python, stop_after_parsing  # noqa: F401

import prepare_fineweb
import run_experiment
from benchmarking import cost

TRAININGS = yaml.safe_load((ROOT / "tests" / "paper_trainings.yaml").read_text())
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "scripts").glob("*.sh")
    if re.search("^exec .*run_experiment.py|^ *experiment ", path.read_text(), re.MULTILINE)
    and path.stem != "activate"
)
# First words of scripts.
FIRST = {"authors_checkpoint": ["weights.pt"], "half_hour": ["gpt2"]}


# The jobs of the scripts


def calls_of(name, folder, *words, answer=lambda flags: "test\ndata/mine\nruns/rope\n"):
    """Return the flags with which a script calls run_experiment.py; --commands has its lines.

    answer: what each call writes to EXPERIMENT_VARIABLES, a function of its flags; by default as if
    it had trained one run, `rope`.
    """
    program, asked, answered = (folder / path for path in ("bin/python", "asked", "answered"))
    code = f"""#!/bin/bash
{{
    printf '%s\\0' "$@"
    case "$*" in *"--commands -"*) printf '\\2'; cat ;; esac
}} >{asked}
cat {answered} >"${{EXPERIMENT_VARIABLES:-/dev/null}}"
"""
    write_program(program, code)
    for pipe in (asked, answered):
        os.mkfifo(pipe)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    script = ["bash", str(ROOT / "scripts" / f"{name}.sh"), *FIRST.get(name, []), *words]
    command = f"{shlex.join(map(str, script))}; printf $? >{asked}"
    calls = []
    with subprocess.Popen(["bash", "-c", command], env=environment, stdout=subprocess.DEVNULL):
        while "\0" in (text := asked.read_text()):
            arguments, _, lines = text.partition("\2")
            program, *flags = arguments.split("\0")[:-1]
            if lines:
                place = flags.index("-")
                flags[place : place + 1] = lines.splitlines()
            is_call = program == "run_experiment.py"
            calls += [flags] if is_call else []
            answered.write_text(answer(flags) if is_call else "")
    assert text == "0"
    for pipe in (asked, answered):
        pipe.unlink()
    return calls


def experiment(words):
    config = cli.parse(run_experiment.Config, words, None)
    return run_experiment.Experiment(config)


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_have_the_papers_settings(name, tmp_path, monkeypatch):
    """At full scale: config, length, encoding and further flags of every training of a script."""
    monkeypatch.chdir(ROOT)
    found = set()
    for call in calls_of(name, tmp_path):
        for job in jobs_of(*map(shlex.quote, call)):
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
    words = ["--scale", "small", "--data", data_dir, "--encodings", "mine"]
    words += ["--plugin", plugin, "--runs", tmp_path / "runs", "--dry_run"]
    for call in calls_of(name, tmp_path, *words):
        run_experiment.main(call)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("+ ")]
    request.getfixturevalue("stop_after_parsing")
    for words in map(shlex.split, [line[2:] for line in lines]):
        check_python(words[1:])
        programs = r"train_gpt|eval_\w+\.py|retrieval\.(finetune|evaluate) |biases|export_hf|sample"
        if re.search(f"{programs}|bench", " ".join(words)):
            assert str(plugin) in words
        if "bench.py" in words and name not in ("sandwich_section6", "v1_headline"):
            assert words[words.index("--encodings") + 1] == "mine"
    assert not (tmp_path / "runs").exists()


def jobs_of(*words):
    return [*experiment(shlex.split(" ".join(words))).jobs.values()]


def test_continued_trainings_are_evaluated_on_the_same_split(tmp_path):
    words = [word for call in calls_of("rope_extended", tmp_path) for word in call]
    lines = [line for line in words if line.startswith("eval_extrapolation.py")]
    assert lines and all("--split test " in line for line in lines)


@pytest.mark.parametrize("name", [*TRAININGS, "figure3"])
def test_headers_state_the_cost_of_the_dry_run(name, tmp_path, monkeypatch, capsys):
    """At full scale, without data, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    monkeypatch.setattr(cost, "measure_cpu", lambda: None)
    variables, ledger = tmp_path / "variables", tmp_path / "ledger"
    monkeypatch.setenv("EXPERIMENT_VARIABLES", str(variables))
    monkeypatch.setenv("COST_LEDGER", str(ledger))
    variables.touch()
    ledger.touch()

    def dry_run(flags):
        run_experiment.main([*flags, "--dry_run"])
        return variables.read_text()

    calls_of(name, tmp_path, answer=dry_run)
    *_, total = capsys.readouterr().out.splitlines()
    text = (ROOT / "scripts" / f"{name}.sh").read_text().replace("\n# ", " ")
    assert f" Cost: {total.partition(': ')[2]}." in text


def test_a_part_of_fineweb_is_completed_before_a_training_that_needs_more(tmp_path, monkeypatch):
    """2,000 tokens are prepared: enough for one step of 1,024, not for two."""
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    Path("crawl.jsonl").write_text('{"text": "one line of text"}\n' * 400)
    words = "--source crawl.jsonl --shard_tokens 2000 --tokenizer bytes --shards 2"
    prepare_fineweb.main([*words.split(), "--out_dir", "data/fineweb-edu"])
    words = "--train fineweb-edu_tiny -- --warmup_steps 0 --tokens_per_step 1024 --steps"
    assert [job.words[0] for job in jobs_of(words, "1")] == ["train_gpt.py"]
    prepare, train = jobs_of(words, "2")
    assert prepare.words == ["prepare_fineweb.py", "--out_dir", "data/fineweb-edu"]
    assert train.needs == [prepare]
    jobs = jobs_of("--train fineweb-edu_tiny")
    _, text, _ = cost.describe_costs([job.words for job in jobs])
    assert "1.01 epochs of 9,853,989,344 tokens" in text


def test_extrapolation_has_the_baseline_of_rope_with_a_cache(monkeypatch):
    """Of rope, at lengths beyond that of its training, unless a cache is given."""
    monkeypatch.chdir(ROOT)
    words = ["--train quickstart --fixed --data stdlib --encodings cable rope --perplexity"]

    def cached(*words):
        return [x.words for x in jobs_of(*words) if "--cache_window" in x.words]

    (found,) = cached(*words, "1x,4x")
    assert found[1] == "runs/experiment/rope" and found[-2:] == ["--cache_window", "256"]
    mlm = "--train fineweb-edu_bert --data stdlib --encodings rope --perplexity 4x"
    assert cached(*words, "1x") == cached(mlm) == []


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
    assert found.models[1].output == f"{folder}/wikitext103-bytes-256/cable-lr2e-3"
    assert found.out == Path(f"{folder}/experiment-lr")  # a sweep has its own report


def test_commands_wait_for_those_that_write_what_they_read(monkeypatch):
    """Paths have spaces and quotes; a report among the commands is a job like any other."""
    monkeypatch.chdir(ROOT)
    root = "it's mine/runs"
    lines = [
        ["export_hf.py", f"{root}/a", "--out_dir", f"{root}/b"],
        ["-m", "retrieval.finetune", f"{root}/b", "--out_dir", f"{root}/c"],
        ["report.py", f"{root}/c/eval_x.json", "--out_dir", f"{root}/report"],
        ["plot.py", "losses", f"{root}/bb", "--out", "losses.png"],
    ]
    words = ["--runs", root, "--commands", *map(shlex.join, lines)]
    export, finetune, report, plot = experiment(words).jobs.values()
    assert [job.words for job in (export, finetune, report)] == lines[:3]
    assert plot.words[-1] == f"{root}/full/experiment/losses.png"
    needs = [[other.words for other in job.needs] for job in (export, finetune, report, plot)]
    assert needs == [[], [lines[0]], [lines[1]], []]


# Jobs of any program, in this process


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs jobs as python -c; JOBS lists the names of those that ran."""
    write_program(tmp_path / "bin" / "python", '#!/bin/bash\ncode=$2; shift 2; eval "$code"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run_jobs(*jobs, width=1):
        report = ["log", f'echo "$@" >>{tmp_path}/report']
        runner = Scheduler([*jobs], report, tmp_path / "logs", width)
        return runner.run()

    yield run_jobs
    for number, handler in handlers.items():
        signal.signal(number, handler)


def say(**values):
    return f"echo '{job_report.json.dumps(values)}' >>$JOB_REPORT; "


def output_job(folder, command, *inputs):
    """Return a job that adds a line to a folder's file `made`."""
    out = folder / "out"
    code = f"echo x >>{folder}/count; mkdir {out}; {command}"
    return Job(["log", code, *map(str, inputs)], output=str(out))


def count(folder):
    path = folder / "count"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_file_that_is_damaged_is_made_again(tmp_path, run):
    out = tmp_path / "speed.json"
    for damage in (None, "", None):
        if damage is not None:
            out.write_text(damage)
        code = f"echo x >>{tmp_path}/count; echo mine >{out}"
        assert run(Job(["log", code], output=str(out))) == 0
    assert out.read_text() == "mine\n" and count(tmp_path) == 2


def test_a_job_is_repeated_if_its_inputs_changed(tmp_path, run):
    """Words, files and folders that it names; not if only its output exists."""
    data = tmp_path / "run"
    data.mkdir()
    (data / "checkpoint.pt").write_text("1")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("a")

    def make(word="A"):
        assert run(output_job(tmp_path, f": {word}; cp {plugin} {tmp_path}/out", data, plugin)) == 0
        return count(tmp_path)

    assert [make(), make()] == [1, 1]
    plugin.write_text("b")
    assert [make(), make()] == [2, 2]
    assert (tmp_path / "out" / "plugin.py").read_text() == "b"
    (data / "checkpoint.pt").write_text("22")
    assert [make(), make()] == [3, 3]
    (data / "eval_x.json").write_text("{}")  # results change no run
    assert make() == 3
    assert [make("B"), make("A"), make("A")] == [4, 5, 5]
    shutil.rmtree(tmp_path / "out")
    assert [make(), make()] == [6, 6]


def test_an_interrupted_or_failed_job_is_repeated(tmp_path, run):
    assert run(output_job(tmp_path, "exit 3")) == 1
    assert run(output_job(tmp_path, "kill -9 $$")) == 1
    assert run(output_job(tmp_path, ":")) == run(output_job(tmp_path, ":")) == 0
    assert count(tmp_path) == 3


def test_a_folder_that_no_job_made_is_never_removed(tmp_path, run):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    for _ in range(2):
        assert run(output_job(tmp_path, "true")) == 0
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


DAMAGES = [
    b"",
    b"{",
    b"\xff\xfe[1]\n",
    b'[1, 2]\n"x"\n',
    b'{"records": 3}\n{"records": [3, [4]]}\n',
]


def record_job(folder, name, code=""):
    """Return a job that writes a record, reports it and runs further code."""
    path = folder / name
    return Job(["log", f"touch {path}; {say(records=[str(path)])}{code}"])


def reported(folder):
    """Return the names of the records of the latest report."""
    return "".join(Path(x).name for x in (folder / "report").read_text().split("\n")[-2].split())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_reports_lose_only_their_own_rows(tmp_path, run, damage):
    assert run(record_job(tmp_path, "a"), record_job(tmp_path, "b")) == 0
    path = tmp_path / "logs" / f"{record_job(tmp_path, 'a').name}.jsonl"
    assert path.exists()
    path.write_bytes(damage)
    assert run(record_job(tmp_path, "b")) == 0
    assert reported(tmp_path) == "b"
    # Also if the program finds its record and repeats nothing.
    jobs = [record_job(tmp_path, "b"), record_job(tmp_path, "a", say(repeated=True))]
    assert run(*jobs) == 0
    assert reported(tmp_path) == "ab"


def test_jobs_have_logs_of_their_own(tmp_path, run):
    names = ["rope+cable", "rope_cable", "a/b", "a b", "a-b", "1" + "a" * 200, "2" + "a" * 200]
    assert run(*[Job(["log", f"echo {name}"]) for name in names]) == 0
    logs = [path.read_text().strip() for path in (tmp_path / "logs").glob("*.txt")]
    assert sorted(logs) == sorted(names)


def test_records_that_are_written_while_a_signal_arrives_count(tmp_path, run):
    assert run(record_job(tmp_path, "a", "kill -TERM $PPID; sleep 1")) == 128 + signal.SIGTERM
    assert run(record_job(tmp_path, "b")) == 0
    assert reported(tmp_path) == "ab"


@pytest.mark.parametrize("end", [say(finished=False), "kill -TERM $$"])
def test_a_training_that_ends_before_its_last_step_is_interrupted(tmp_path, run, capsys, end):
    """Also with status 0, as after SIGTERM to it alone: no evaluation, no report, no success."""
    train = Job(["log", end])
    evaluation = Job(["log", f"touch {tmp_path}/evaluated"], [train])
    assert run(train, evaluation) == 1
    assert (train.state, evaluation.state) == ("interrupted", "skipped")
    assert "error: interrupted: python log" in capsys.readouterr().err
    assert not (tmp_path / "evaluated").exists() and not (tmp_path / "report").exists()


def test_signals_reach_jobs_that_start_at_that_moment(tmp_path, run, monkeypatch):
    """Between the start of a job and its registration; no other job starts."""
    popen = subprocess.Popen

    def start(*arguments, **options):
        process = popen(*arguments, **options)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(scheduler.subprocess, "Popen", start)
    jobs = [Job(["log", f": {name}; sleep 30"]) for name in "ab"]
    begin = time.monotonic()
    assert run(*jobs, width=2) == 128 + signal.SIGTERM
    assert [job.state for job in jobs] == ["interrupted", "waiting"]
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    "visible, count, side_by_side, devices",
    [
        ("", 8, None, "0,1,2,3,4,5,6,7"),
        ("2,5,", 2, None, "2,5"),
        ("0,1,2,3", 2, None, "0,1"),
        ("GPU-a,GPU-b", 2, 1, "GPU-a,GPU-b"),
        ("MIG-a,MIG-b", 1, None, "MIG-a"),
        ("0,1,2,3", 4, 2, "0"),
        ("-1", 0, None, "-1"),
    ],
)
def test_ranks_and_threads_of_a_job(
    tmp_path, run, monkeypatch, visible, count, side_by_side, devices
):
    """One rank per device that exists; the cores are shared by ranks or jobs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv(scheduler.DEVICES, str(count))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    write_program(tmp_path / "bin" / "torchrun", '#!/bin/bash\necho "$2"; python "${@:3}"\n')
    words = ["log", f"echo $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS >{tmp_path}/seen"]
    job = Job(words, on_all_ranks=True)
    assert run(job, width=side_by_side) == 0
    ranks = devices.count(",") + 1
    (log,) = (tmp_path / "logs").glob("*.txt")
    assert log.read_text() == (f"--nproc_per_node={ranks}\n" if ranks > 1 else "")
    width = {"MIG-a": 2, "0": 2, "-1": 16}.get(devices, ranks)
    assert (tmp_path / "seen").read_text().split() == [*devices.split(), str(16 // width)]


@pytest.mark.parametrize("side_by_side, devices", [(None, ["0", "1", "2"]), (1, ["0"])])
def test_trainings_of_fixed_configs_have_one_device_each(
    tmp_path, monkeypatch, side_by_side, devices
):
    """As these networks are small; others are trained on all devices."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(scheduler.DEVICES, "3")
    words = "--train quickstart --data stdlib --encodings cable rope alibi"
    fixed = Scheduler(jobs_of(words, "--fixed"), [], tmp_path, side_by_side)
    assert (fixed.free, fixed.ranks) == (devices, 1)
    shared = Scheduler(jobs_of(words), [], tmp_path, side_by_side)
    assert (shared.free, shared.ranks) == (["0", "1", "2"], 3)


# A simulated node: programs that only log


# In place of python and torchrun: logs its arguments, devices and times, and fails for `broken`
# and on the device FAULTY.
PROGRAM = """#!/bin/bash
for word in "$@"; do case $word in *.py) program=$word; break ;; esac; done
report() { if [ -n "$JOB_REPORT" ]; then echo "$1" >>"$JOB_REPORT"; fi; }
start=$(date +%s.%N)
log() { echo "$start $(date +%s.%N) ${CUDA_VISIBLE_DEVICES:-} $0 $*" >>"$JOB_LOG"; }
case $program in
    run_experiment.py) exec "$PYTHON" "$@" ;;
    prepare_text.py) exit ;;
    report.py) log "$@"; exit ;;
    train_gpt.py) words=$* out=${words##*--out_dir } out=${out%% *}; mkdir -p "$out"
        if [ -f "$out/finished" ]; then exit; fi ;;
esac
if [ "${CUDA_VISIBLE_DEVICES:-}" = "${FAULTY:-none}" ]; then log "$@"; exit 1; fi
trap 'kill $! 2>/dev/null; report "{\\"finished\\": false}"; exit 0' TERM
if [ -n "${DEAF:-}" ]; then trap '' TERM; fi
for second in $(seq "${TIMES:-1}"); do sleep "${SECONDS_PER_JOB:-0.2}" & wait $!; done
log "$@"
case "$*" in *"--pe broken"*) exit 1 ;; esac
if [ -n "${out:-}" ]; then touch "$out/finished"; fi
record="$3/eval_x.json"
case $program in eval_*) touch "$record"; report "{\\"records\\": [\\"$record\\"]}" ;; esac
"""


def start(folder, *words, devices, wait=True, program=(), **settings):
    """Run an experiment with programs that only log; return the process, or its result."""
    # A process that gets signals is not forked from the server, which is in another group.
    python = shutil.which("python", path=search_path()) if wait else sys.executable
    programs = folder / "programs"
    for name in ("python", "torchrun"):
        write_program(programs / name, PROGRAM.replace("$3", "$2" if name == "python" else "$4"))
    environment = os.environ | {"EXPERIMENT_DEVICES": str(devices), "PYTHON": sys.executable}
    environment |= {"JOB_LOG": str(folder / "jobs")}
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
    return finish(process) if wait else process


def finish(process):
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture
def node(tmp_path):
    """A folder with an encoding whose training fails."""
    write_plugin(tmp_path / "broken.py", "broken")
    return tmp_path


def logged(folder, program=""):
    """Return (start, end, devices, program and flags) of the jobs, in the order of their ends."""
    rows = [line.split(" ", 3) for line in (folder / "jobs").read_text().splitlines()]
    found = [(float(first), float(end), devices, words) for first, end, devices, words in rows]
    return [row for row in found if program in row[3] and ("report.py" in row[3]) <= bool(program)]


TEN = shlex.split("cable cable-nw alibi fire t5 t5-clip kerple rope learnable broken")
COMMON = ["--data", "stdlib", "--scale", "smoke", "--train", "fineweb-edu_tiny"]
COMMON += ["--same_targets", "512,1024", "--encodings"]
FLAGS = [*COMMON, *TEN]


def test_each_device_of_a_node_has_one_job_and_failures_do_not_stop_the_others(node):
    """A job that fails on two devices is broken; its devices are used further."""
    done = start(node, *FLAGS, "--jobs", "8", devices=8, SECONDS_PER_JOB="0.5")
    assert done.returncode == 1
    assert done.stderr.count("error: failed: ") == 1 and "--pe broken" in done.stderr
    jobs = logged(node)
    assert len(jobs) == 10 + 1 + 9  # trainings, one twice, and evaluations
    assert {devices for _, _, devices, _ in jobs} == {str(number) for number in range(8)}
    for first in jobs:
        for second in jobs:
            if first is not second and first[2] == second[2]:
                assert first[1] <= second[0] or second[1] <= first[0]
    # Nothing is idle while a job waits: ten trainings on eight devices take two rounds.
    assert max(end for _, end, _, _ in jobs) - min(first for first, *_ in jobs) < 7


def test_a_broken_device_loses_no_job(node):
    done = start(node, *COMMON, *TEN[:-1], "--jobs", "4", devices=4, FAULTY="2")
    assert done.returncode == 0, done.stderr
    failed = [words for *_, devices, words in logged(node) if devices == "2"]
    assert len(failed) == 1 and "failed on device 2, then left out: check it" in done.stdout
    assert len(logged(node, "train_gpt.py")) == 9 + 1


def test_a_broken_machine_fails(node):
    done = start(node, *COMMON, "cable", "rope", "--jobs", "1", devices=1, FAULTY="0")
    assert done.returncode == 1 and done.stderr.count("error: failed: ") == 2
    assert len(logged(node)) == 2 and done.stderr.count("error: skipped: ") == 2


def test_trainings_on_all_devices_are_evaluated_before_the_next_one(node):
    done = start(node, *FLAGS, devices=8)
    assert done.returncode == 1
    programs = [words.split(" ", 1)[1] for *_, words in logged(node)]
    pattern = r"(train_gpt|eval_extrapolation).*?(?:--pe |smoke/\S+/)(\S+)"
    order = [re.search(pattern, words).groups() for words in programs]
    each = [(name, pe) for pe in TEN for name in ("train_gpt", "eval_extrapolation")]
    assert order == each[:-1]  # the last one, broken, is not evaluated
    assert all(words.startswith("--standalone --nproc_per_node=8 ") for words in programs)


def test_an_interrupted_experiment_continues_and_repeats_nothing(node):
    """The signal reaches the jobs, no other starts, and all end."""
    process = start(node, *FLAGS, "--jobs", "2", devices=2, wait=False, SECONDS_PER_JOB="1")
    wait_for(lambda: processes_of(node, "eval_extrapolation"))
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "interrupted: run the same command again to continue\n"  # none failed
    assert "\ninterrupted: " in done.stdout
    before = logged(node, "train_gpt.py")
    assert 1 <= len(before) < 10
    assert start(node, *FLAGS[:-1], "--jobs", "2", devices=2).returncode == 0
    trained = [words for *_, words in logged(node, "train_gpt.py")]
    assert len(trained) == len(set(trained)) == 9
    assert logged(node, "report.py")[-1][3].count("eval_x.json") == 9


def test_a_signal_to_one_training_stops_no_other(node):
    """It is reported as interrupted, has no evaluation, and continues in the next call."""
    words = [*COMMON, "cable", "rope", "--jobs", "2"]
    process = start(node, *words, devices=2, wait=False, SECONDS_PER_JOB="2")
    wait_for(lambda: len(processes_of(node, "--pe cable")) > 0)
    (one, *_) = processes_of(node, "--pe cable")
    os.kill(one, signal.SIGTERM)
    done = finish(process)
    assert done.returncode == 1 and done.stderr.count("error: interrupted: ") == 1
    (evaluated,) = logged(node, "eval_extrapolation.py")
    assert "/rope " in evaluated[3]
    assert start(node, *words, devices=2).returncode == 0
    assert logged(node, "report.py")[-1][3].count("eval_x.json") == 2


def test_the_third_signal_kills_jobs_that_ignore_the_others(node):
    words = [*COMMON, "cable", "rope"]
    settings = {"wait": False, "DEAF": "1", "SECONDS_PER_JOB": "1", "TIMES": "60"}
    process = start(node, *words, devices=2, **settings)
    wait_for(lambda: processes_of(node, "--pe cable"))
    time.sleep(0.5)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)  # less than the job takes
    assert process.returncode == 128 + signal.SIGINT
    wait_for(lambda: not processes_of(node), seconds=5)


def processes_of(folder, text=""):
    """Return the running processes that log to this folder, with a text in their commands."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"JOB_LOG={folder}/".encode() in (path / "environ").read_bytes():
                command = (path / "cmdline").read_text().replace("\0", " ")
                found += [int(path.name)] if text in command else []
    return sorted(found)


@pytest.mark.parametrize(
    "script, number", [("all_tables", signal.SIGTERM), ("sandwich_table3_5", signal.SIGINT)]
)
def test_no_process_outlives_a_script_of_several_stages(node, script, number):
    """SIGTERM reaches the shell only, Ctrl-C all processes of the terminal."""
    words = ["--scale", "smoke", "--data", "stdlib", "--encodings", "cable", "rope"]
    command = ["bash", f"scripts/{script}.sh"]
    started = {"devices": 2, "wait": False, "program": command, "SECONDS_PER_JOB": "30"}
    process = start(node, *words, **started)
    wait_for(lambda: processes_of(node, "train_gpt.py"))
    send = os.killpg if number == signal.SIGINT else os.kill
    send(process.pid, number)
    process.communicate(timeout=120)
    assert process.returncode
    wait_for(lambda: not processes_of(node), seconds=20)  # less than a job takes
