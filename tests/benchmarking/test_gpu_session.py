"""Session on a GPU: budgets, resume, archive, checks, and aims judged from fake records."""

import json
import signal
import subprocess
import sys
import tarfile
import textwrap
import time

from runtime import cli
from runtime.files import write_json

import pytest
from conftest import ROOT

import bench
import train_gpt
from benchmarking import kernel_times
from benchmarking.gpu_session import __main__ as program
from benchmarking.gpu_session import aims, checks, kernels, runner
from benchmarking.gpu_session.parts import Command, Machine, Part, make_parts
from errors import InputError
from triton_attention.bias import KINDS

ON_GPU = Machine(ROOT / "runs" / "x", "data/stdlib", "cuda", 8)
ON_CPU = Machine(ROOT / "runs" / "x", "data/stdlib", "cpu", 0)


def python(name, code, *words):
    return Command(name, [sys.executable, "-c", textwrap.dedent(code), *map(str, words)])


def note(path):
    """Return a command that appends a line to a file."""
    return python(path.name, "import sys; print('ran', file=open(sys.argv[1], 'a'))", path)


def run(folder, parts, limit=60.0, jobs=1, **budgets):
    """Run parts in a session that is read from the folder; return it."""
    session = runner.Session.open(folder)
    runner.run_parts(session, parts, budgets, limit, jobs)
    return session


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(runner, "GRACE", 0.3)


def test_a_part_that_fails_or_is_late_does_not_stop_the_next(tmp_path, capsys):
    out = tmp_path / "session"
    broken = python("broken", "print('no such kernel'); raise SystemExit(3)")
    late = python(
        "late", "import os, sys, time; time.sleep(0 if os.path.exists(sys.argv[1]) else 60)", out
    )
    late.words[-1] = str(tmp_path / "fast")
    parts = [
        Part("first", 60, [[note(tmp_path / "a")]]),
        Part("wrong", 60, [[broken, note(tmp_path / "b")]]),
        Part("slow", 1, [[late], [note(tmp_path / "c")]]),
        Part("last", 60, [[note(tmp_path / "d")]]),
    ]
    session = run(out, parts)
    statuses = [session.status(part.name) for part in parts]
    assert statuses == ["passed", "failed", "timed out", "passed"]
    printed = capsys.readouterr().out
    assert "broken: failed, 0 s, exit status 3: no such kernel" in printed
    assert "late: timed out, 1 s, the part's budget of 1 s is used up" in printed
    assert (tmp_path / "b").read_text() == "ran\n" and not (tmp_path / "c").exists()
    assert (out / "logs" / "wrong_broken.txt").read_text() == "no such kernel\n"

    (tmp_path / "fast").touch()
    session = run(out, parts)  # continues: only what has not passed
    assert session.status("slow") == "passed" and session.status("wrong") == "failed"
    assert [(tmp_path / name).read_text().count("ran") for name in "abcd"] == [1, 1, 1, 1]
    assert capsys.readouterr().out.count("passed before, skipped") == 2


def test_budgets_are_settings_and_end_at_the_limit(tmp_path):
    sleep = python("sleep", "import time; time.sleep(60)")
    parts = [Part(name, 60, [[sleep]]) for name in ("a", "b", "c")]
    start = time.monotonic()
    session = run(tmp_path, parts, limit=1.5, a=1)
    assert time.monotonic() - start < 10
    assert [session.parts[name]["status"] for name in "abc"] == [
        "timed out",
        "timed out",
        "not started",
    ]
    assert session.parts["a"]["budget"] == 1 and session.parts["b"]["budget"] < 0.6


def test_a_late_command_ends_with_its_processes(tmp_path):
    """The first process ends at SIGINT, its child ignores it."""
    code = """
        import signal, subprocess, sys, time
        ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "60"], preexec_fn=ignore)
        print(child.pid, file=open(sys.argv[1], "w"), flush=True)
        time.sleep(60)
    """
    part = Part("late", 2, [[python("late", code, tmp_path / "pid")]])
    assert run(tmp_path / "session", [part]).status("late") == "timed out"
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.05)
    pytest.fail("the child runs on")


def is_running(pid):
    try:
        return (open(f"/proc/{pid}/stat").read().rsplit(")")[-1].split()[0]) != "Z"
    except FileNotFoundError:
        return False


def test_commands_of_a_stage_run_side_by_side(tmp_path):
    """Each command waits for the file of the other, unless the part measures speed."""
    code = """
        import os, sys, time
        open(sys.argv[1], "w")
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    """
    first = python("first", code, tmp_path / "1", tmp_path / "2")
    second = python("second", code, tmp_path / "2", tmp_path / "1")
    part = Part("both", 20, [[first, second]], side_by_side=True)
    assert run(tmp_path / "a", [part], jobs=2).status("both") == "passed"
    (tmp_path / "1").unlink()
    (tmp_path / "2").unlink()
    part = Part("both", 1, [[first, second]])
    commands = run(tmp_path / "b", [part], jobs=2).parts["both"]["commands"]
    assert commands["first"]["status"] == "timed out"
    assert commands["second"]["status"] == "not started"


def test_an_interrupted_session_is_recorded_and_continues(tmp_path):
    """Ctrl-C ends the running command; the summary and the archive are written nevertheless."""
    ready = tmp_path / "ready"
    code = f"""
        import sys
        from pathlib import Path
        from benchmarking.gpu_session import __main__ as program, parts
        wait = [sys.executable, "-c", "import sys, time; open(sys.argv[1], 'w'); time.sleep(60)"]
        command = parts.Command("wait", [*wait, {str(ready)!r}])
        part = parts.Part("smoke", 60, [[command]])
        machine = parts.Machine(Path({str(tmp_path / "session")!r}), "", "cpu", 0)
        program.run(machine, [part], program.Config())
    """
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    while not ready.exists():
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    output, _ = started.communicate(timeout=60)
    assert started.returncode != 0
    session = runner.Session.open(tmp_path / "session")
    assert session.status("smoke") == "interrupted"
    assert output.splitlines()[-1] == f"records: {tmp_path / 'session.tar.gz'}"


def test_corrupt_session_is_refused(tmp_path):
    (tmp_path / "session.json").write_text('{"parts": {"smoke": {}}}')
    with pytest.raises(InputError, match="is corrupt: remove it to run all parts again"):
        runner.Session.open(tmp_path)


def test_archive_has_records_and_logs_but_no_checkpoints(tmp_path):
    folder = tmp_path / "h100"
    (folder / "smoke" / "rope").mkdir(parents=True)
    for name in ("session.json", "summary.txt", "train-small.json", "smoke/rope/log.jsonl"):
        (folder / name).write_text(name)
    (folder / "smoke" / "rope" / "checkpoint_0000020.pt").write_bytes(bytes(99))
    archive = runner.write_archive(folder)
    assert archive == tmp_path / "h100.tar.gz"
    with tarfile.open(archive) as tar:
        assert tar.getnames() == [
            "h100/session.json",
            "h100/smoke/rope/log.jsonl",
            "h100/summary.txt",
            "h100/train-small.json",
        ]
        assert tar.extractfile("h100/summary.txt").read() == b"summary.txt"


# Parts


def test_order_and_budgets_of_the_parts():
    """Decisive parts first; without the others, they fit into half an hour."""
    parts = make_parts(ON_GPU)
    names = [part.name for part in parts]
    order = "environment smoke several-gpus kernels-core kernels-rest train-small train-medium "
    assert names[:9] == (order + "attention trace").split()
    budgets = {part.name: part.budget for part in parts}
    assert sum(budgets[name] for name in names[:9] if name != "several-gpus") <= 1200
    one_gpu = Machine(ON_GPU.out, ON_GPU.data, "cuda", 1)
    needed = [part for part in make_parts(one_gpu) if not part.not_possible]
    assert {part.name for part in parts} - {part.name for part in needed} == {"several-gpus"}


@pytest.mark.parametrize("machine", [ON_GPU, ON_CPU], ids=["gpu", "cpu"])
def test_commands_are_valid(machine):
    """bench.py, train_gpt.py and kernel_times accept their flags; every Triton kind is measured."""
    found = {}
    for part in make_parts(machine):
        for command in (command for stage in part.stages for command in stage):
            words = list(command.words[1:])
            name = f"{part.name}/{command.name}"
            assert name not in found, "logs would overwrite each other"
            found[name] = words
            if "train_gpt.py" in words:
                flags = words[words.index("train_gpt.py") + 1 :]
                cli.parse(train_gpt.Config, flags, train_gpt.__doc__)
            elif words[0] == "bench.py":
                config = cli.parse(bench.Config, words[1:], bench.__doc__, ("what", ""))
                assert config.out == str(machine.out / f"{part.name}.json")
                if part.name == "attention" and machine.is_gpu:
                    kinds = {kernels.encoding_kind(pe) for pe in config.names()}
                    assert kinds == set(KINDS)
            elif "benchmarking.kernel_times" in words:
                cli.parse(kernel_times.Config, words[2:], "")
    assert ("smoke/cable-triton" in found) == machine.is_gpu
    for name in checks.REFERENCES:
        assert (
            machine.is_gpu == (f"smoke/{name}" in found)
            or name in ("rope", "cable", "t5")
            or (name == "activation-checkpointing")
        )
    assert ("several-gpus/8-stopped" in found) == machine.is_gpu
    assert "several-gpus/2-stopped" in found


def test_wrong_settings_are_refused():
    with pytest.raises(InputError) as error:
        program.Config(parts=["speed"], budgets="smoke=300,attention")
    assert error.value.problems[0].startswith("no part 'speed': use environment smoke")
    assert error.value.problems[1].startswith("budgets: 'attention' is invalid")
    assert program.Config(budgets="smoke=300,trace=9").seconds() == {"smoke": 300, "trace": 9}
    assert program.folder_name("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


@pytest.mark.parametrize("mode, jobs", [("Default", 4), ("Exclusive_Process", 1)])
def test_a_gpu_in_exclusive_mode_runs_one_command_at_a_time(monkeypatch, tmp_path, mode, jobs):
    """nvidia-smi is a program that prints what the real one would."""
    row = f"NVIDIA H100 80GB HBM3, 580.1, {mode}, Enabled, 700.00 W"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{row}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert program.environment.query_gpus()[0]["power.limit"] == "700.00 W"
    assert program.default_jobs(ON_GPU) == jobs
    assert program.default_jobs(ON_CPU) == 1


# Checks of trainings


def write_run(folder, losses):
    folder.mkdir(parents=True)
    lines = [json.dumps({"kind": "train", "step": n, "loss": x}) for n, x in enumerate(losses, 1)]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "step, change, passed",
    [(7, 1.0009, True), (9, 1.0011, False), (7, float("nan"), False), (10, 1.01, True)],
    ids=["near", "far", "nan", "late"],
)
def test_first_losses_must_be_within_a_thousandth(tmp_path, step, change, passed):
    losses = [5 - step / 10 for step in range(20)]
    write_run(tmp_path / "cpu", losses)
    losses[step] *= change
    write_run(tmp_path / "gpu", losses)
    check = checks.compare_losses("rope", tmp_path / "gpu", tmp_path / "cpu")
    assert check["passed"] is passed


def test_unfinished_runs_are_not_equal(tmp_path):
    write_run(tmp_path / "cpu", [5.0] * 20)
    write_run(tmp_path / "gpu", [5.0] * 9)
    check = checks.compare_losses("rope", tmp_path / "gpu", tmp_path / "cpu")
    assert not check["passed"] and check["detail"] == "9 steps, and 20 of cpu"
    assert not checks.compare_losses("a", tmp_path / "none", tmp_path / "none")["passed"]
    check = checks.compare_weights("deterministic", tmp_path / "cpu", tmp_path / "none")
    assert not check["passed"] and "no checkpoint" in check["detail"]


@pytest.mark.parametrize("message, status", [(checks.SAVED, 0), ("Terminated", 1)])
def test_a_training_gets_sigterm_and_is_resumed(tmp_path, message, status):
    """A fake training: it logs a step, waits for SIGTERM, and ends at once when it is resumed."""
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "log.jsonl").write_text("of an earlier attempt")
    code = """
        import os, signal, sys, time
        run, message = sys.argv[1:]
        if not os.path.exists(run):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("step 1", message)))
            os.mkdir(run)
            with open(f"{run}/log.jsonl", "w") as file:
                file.write('{"kind": "train", "step": 1, "loss": 2.5}\\n')
            time.sleep(60)
    """
    command = python("training", code, run_folder, message).words
    with pytest.raises(SystemExit) as end:
        checks.main(["--out", str(tmp_path), "interrupt", str(run_folder), *command])
    assert end.value.code == status


# Kernels


def test_every_kernel_case_belongs_to_one_process():
    """The core has about 20 cases, and each kind has some."""
    code = """
        import sys, pytest
        from pathlib import Path
        from benchmarking.gpu_session import kernels
        class Count:
            def pytest_collection_modifyitems(self, items):
                scopes, kinds = ("core", "rest"), kernels.PROCESSES
                pairs = [(scope, kind) for scope in scopes for kind in kinds]
                select = [kernels.Selection(*pair, Path()).selects for pair in pairs]
                counts = [sum(map(chosen, items)) for chosen in select]
                print("COUNTS", len(items), *counts)
        pytest.main(["--collect-only", "-qqs", "tests/triton_attention"], plugins=[Count()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, text=True, capture_output=True
    )
    counts = next(line for line in done.stdout.splitlines() if line.startswith("COUNTS"))
    total, *by_process = map(int, counts.split()[1:])
    assert sum(by_process) == total > 50
    core, rest = by_process[: len(kernels.PROCESSES)], by_process[len(kernels.PROCESSES) :]
    assert sum(core) == 20 and all(core[: len(KINDS)]) and all(rest)


class Item:
    """A collected test."""

    def __init__(self, name, **params):
        self.originalname = name
        self.path = ROOT / "tests" / "test_kernel.py"
        self.callspec = type("CallSpec", (), {"params": params})


class Report:
    """A result of pytest."""

    def __init__(self, nodeid, outcome, when="call"):
        self.nodeid, self.when = nodeid, when
        self.failed, self.skipped = outcome == "failed", outcome == "skipped"


def test_results_of_kernels_are_written_after_each_test(tmp_path):
    selection = kernels.Selection("core", "decay", tmp_path / "results.json")
    items = [Item(kernels.CORE[0], kind=kind) for kind in KINDS]
    items += [Item(kernels.CORE[0], pe="fox"), Item("test_head_dimensions", kind="decay")]
    hook = type("Hook", (), {"pytest_deselected": lambda self, items: None})()
    selection.pytest_collection_modifyitems(type("Config", (), {"hook": hook}), items)
    assert [item.callspec.params for item in items] == [{"kind": "decay"}, {"pe": "fox"}]
    selection.pytest_runtest_logreport(Report("a", "passed", "setup"))
    selection.pytest_runtest_logreport(Report("a", "passed"))
    selection.pytest_runtest_logreport(Report("b", "failed"))
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == {"passed": 1, "failed": ["b"], "total": 2}


def test_other_cases_of_a_wrong_kind_are_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "run_tests", lambda selection: 0)
    write_json(tmp_path / "kernels" / "core_decay.json", {"passed": 1, "failed": ["a"], "total": 2})
    for kind, status in (("decay", 1), ("log-decay", 0)):
        with pytest.raises(SystemExit) as end:
            kernels.main(["--out", str(tmp_path), "rest", kind])
        assert end.value.code == status
    assert capsys.readouterr().out == "not run: core cases failed: a\n"


# Aims


def entry(rate, **ratios):
    return {"tokens": 32768, "tokens_per_second": rate, "ratios": ratios, "memory": 7e9}


def write_session(folder, cable=0.98, triton=1.02, kernels_of_decay=(), device="NVIDIA H100 80GB"):
    """Write records of a session that meets all aims, except for what the arguments change."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "environment.json", {"device": f"cuda ({device})"})
    for part in ("smoke", "several-gpus"):
        write_json(folder / f"{part}.json", [{"name": "a", "passed": True, "detail": ""}])
    for scope in ("core", "rest"):
        for kind in kernels.PROCESSES:
            failed = list(kernels_of_decay) if (scope, kind) == ("core", "decay") else []
            results = {"passed": 3 - len(failed), "failed": failed, "total": 3}
            write_json(folder / "kernels" / f"{scope}_{kind}.json", results)
    for size, rate in (("small", 460_000.0), ("medium", 190_000.0)):
        cases = {
            "rope": entry(0.9 * rate, rope=1.0, flash=0.9, nope=0.99),
            "rope flash": entry(rate, rope=1.11, flash=1.0, nope=1.1),
            "nope": None,
            "cable": entry(rate, rope=1.05, flash=cable),
            "cable triton": entry(rate, rope=1.10, flash=triton),
            "fox": entry(rate, rope=1.0, flash=0.93),
        }
        write_json(folder / f"train-{size}.json", {"train": {"contexts": {"1024": cases}}})
    record = {"eval": {"contexts": {"131072": {"cable": entry(1.0)}}}}
    write_json(folder / "memory.json", record)
    parts = {"smoke": "passed", "several-gpus": "passed"}
    return runner.Session(folder, {name: {"status": word} for name, word in parts.items()})


def verdicts(session):
    """Return the verdict and the detail of each of the ten lines, by the name of its aim."""
    lines = aims.summarize(session)
    assert len(lines) == 10
    found = {}
    for line in lines:
        name, _, detail = line[14:].partition(": ")
        found[name] = (line[:12].strip(), detail)
    return found


def test_summary_of_a_session_that_meets_all_aims(tmp_path):
    found = verdicts(write_session(tmp_path))
    assert {verdict for verdict, _ in found.values()} == {"met"}
    assert found["rope, small"][1].startswith(
        "460,000 tokens/s (71.2 ms, rope flash), aim 450,000, roofline "
    )
    assert found["cable / rope, small"][1] == "1.020, aim 0.97"  # by Triton
    assert found["Triton kernels"][1] == "42 of 42 tests passed"
    assert "small 0.930 (fox, of 2 encodings)" in found["fused encodings / rope"][1]


def test_summary_names_what_is_missed(tmp_path):
    found = verdicts(write_session(tmp_path, cable=0.9, triton=0.95))
    missed = {name for name, (verdict, _) in found.items() if verdict == "missed"}
    assert missed == {"cable / rope, small", "cable / rope, medium"}
    # Paths whose kernels are wrong do not count: 0.9 by PyTorch's kernel, not 1.02 by Triton's.
    found = verdicts(write_session(tmp_path, cable=0.9, kernels_of_decay=["test_a"]))
    assert found["cable / rope, small"] == ("missed", "0.900, aim 0.97")
    assert found["Triton kernels"] == ("missed", "41 of 42 tests passed; wrong: decay")


def test_a_timeout_is_not_a_wrong_kernel(tmp_path):
    """The tests of one kind ended in the middle, those of another never started."""
    session = write_session(tmp_path, cable=0.9)
    write_json(tmp_path / "kernels" / "core_decay.json", {"passed": 1, "failed": [], "total": 3})
    (tmp_path / "kernels" / "rest_distance.json").unlink()
    verdict, detail = verdicts(session)["Triton kernels"]
    assert verdict == "not measured"
    assert detail == "37 of 39 tests passed; not finished, no failure: decay, distance"
    assert verdicts(session)["cable / rope, small"] == ("met", "1.020, aim 0.97")


def test_summary_without_records_names_the_parts(tmp_path):
    session = runner.Session(tmp_path, {"train-small": {"status": "timed out"}})
    found = verdicts(session)
    assert {verdict for verdict, _ in found.values()} == {"not measured"}
    assert found["rope, small"][1] == "part train-small: timed out"
    assert found["rope, medium"][1] == "part train-medium: not started"


def test_speeds_of_other_gpus_are_not_judged(tmp_path):
    for device in ("NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB"):
        found = verdicts(write_session(tmp_path, device=device))
        assert found["rope, small"][0] == found["cable / rope, small"][0] == "not measured"
        assert "460,000 tokens/s" in found["rope, small"][1]
        assert found["Triton kernels"][0] == "met"
