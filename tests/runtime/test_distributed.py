"""Tests of training on several ranks: the same weights for any world size, and safe stops."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap

from runtime import distributed

import pytest
import torch
from conftest import ROOT, TINY, log_of, losses, ranks, wait_for
from in_process import digest

from errors import InputError
from training import checkpoints, run_folder

# A step is 16 windows of 32 tokens: an epoch has 23 steps.
FLAGS = [
    *TINY,
    *shlex.split("--steps 20 --block_size 32 --tokens_per_step 512 --micro_batch 4"),
    *shlex.split("--checkpoint_every 4 --log_every 4 --val_every 10 --val_tokens 1024"),
]
# cape draws random numbers, so the random state of each rank matters.
DRAWING = "cape+cable"


# Code for `ranks` and `train`, executed on each rank before the program.

# Rank 0 must not lock the folder before all ranks have looked for a checkpoint.
LOOK_LATE = """
    import time
    from training.run_folder import Run
    find = Run.find_checkpoint
    def find_late(*args, **options):
        time.sleep(rank)
        return find(*args, **options)
    Run.find_checkpoint = find_late
"""

LEAVE_THE_GROUP = """
    import contextlib
    from errors import InputError
    from runtime import distributed
    def gloo_threads():
        count = 0
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has just ended
                count += "gloo" in open(f"/proc/self/task/{thread}/comm").read()
        return count
    def use(processes):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        model.cycle = [model]  # freed by the garbage collector only
        assert gloo_threads() > 0
        raise InputError("failed")
    try:
        with distributed.process_group() as processes:
            use(processes)
    except InputError as error:
        print(*error.problems, file=sys.stderr)
    print(gloo_threads(), file=sys.stderr)
    sys.exit(7)
"""


FULL_DISK_AT_STEP_8 = """
    import errno
    save = torch.save
    def save_unless_full(value, file, **options):
        if isinstance(value, dict) and value["step"] == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(value, file, **options)
    torch.save = save_unless_full
"""

# The second loss after torch.poison is set becomes NaN.
POISON_A_LOSS = """
    forward = train_gpt.GPT.forward
    def poisoned(self, tokens, targets):
        loss = forward(self, tokens, targets)
        if hasattr(torch, "poison"):
            torch.poison += 1
            if torch.poison == 3:
                loss = loss * torch.nan
        return loss
    train_gpt.GPT.forward = poisoned
"""

# All ranks but 0 miss the newest checkpoint.
LIST_STALE_CHECKPOINTS = """
    from training import checkpoints
    list_checkpoints = checkpoints.list_checkpoints
    def list_stale(folder):
        paths = list_checkpoints(folder)
        return paths if rank == 0 else paths[:-1]
    checkpoints.list_checkpoints = list_stale
"""

# The graphs of torch.compile are executed by PyTorch: the code of Inductor takes long to compile.
COMPILE_WITHOUT_INDUCTOR = """
    compile = torch.compile
    torch.compile = lambda function, **options: compile(function, backend="aot_eager", **options)
"""

SHORT_TIMEOUT = """
    import datetime, time
    from runtime import distributed
    distributed.TIMEOUT = datetime.timedelta(seconds=2)
"""

# torchrun sets the variable: the processes that it starts again are not killed.
KILL_ONCE = (
    'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.kill(os.getpid(), signal.SIGKILL)'
)

STOP = "os.kill(os.getpid(), signal.SIGTERM)"


def at_step(step, rank, action):
    """Return code that executes `action` on a rank at the start of a step (counted from 1)."""
    return f"""
    learning_rate = train_gpt.learning_rate
    acted = []
    def act(step, config):
        if step == {step - 1} and rank == {rank} and not acted:
            acted.append(True)
            {action}
        return learning_rate(step, config)
    train_gpt.learning_rate = act
"""


def train(count, data_dir, run, *flags, code=""):
    """Train on `count` ranks with FLAGS and further flags; return the results of `ranks`."""
    return ranks(count, *FLAGS, "--data", data_dir, "--out_dir", run, *flags, code=code)


def succeeded(results):
    """Return the standard output of rank 0; fail unless all ranks exited with status 0."""
    assert all(status == 0 for status, _, _ in results), results
    return results[0][1]


def error_lines(results):
    """Return the errors of all ranks, without warnings; fail unless all exit with status 2."""
    assert [status for status, _, _ in results] == [2] * len(results)
    lines = "".join(errors for _, _, errors in results).splitlines()
    return [line for line in lines if line.startswith("error")]


def checkpoint_names(run):
    return [path.name for path in checkpoints.list_checkpoints(run)]


def weights(run, step=20):
    return checkpoints.load_checkpoint(run / f"checkpoint_{step:07d}.pt")["model"]


def assert_equal_to_rounding(a, b):
    """Check that differences are small: one lost window would move weights by about 1e-2 / 20."""
    differences = {name: a[name] - b[name] for name in a}
    assert max(x.abs().max() for x in differences.values()) < 1e-3
    assert norm(differences) < 1e-4 * norm(a)


def norm(tensors):
    return sum(x.square().sum() for x in tensors.values()).sqrt()


@pytest.fixture(scope="module")
def one_rank(data_dir, tmp_path_factory):
    """A run of 20 steps on one rank."""
    run = tmp_path_factory.mktemp("one_rank") / "run"
    succeeded(train(1, data_dir, run, "--keep_checkpoints", "9"))
    return run


@pytest.fixture(scope="module")
def two_ranks(data_dir, tmp_path_factory):
    """A run of 20 steps on two ranks with their own random numbers."""
    run = tmp_path_factory.mktemp("two_ranks") / "run"
    succeeded(train(2, data_dir, run, "--pe", DRAWING))
    return run


def test_four_ranks_equal_one(one_rank, data_dir, tmp_path):
    """Two ranks, with gradient accumulation: `test_compiled_ranks_train_the_same`."""
    results = train(4, data_dir, tmp_path / "run", code=LOOK_LATE)
    assert "world size 4 x 1 micro-batches x 4 sequences" in succeeded(results)
    assert all(output == "" for _, output, _ in results[1:])  # only rank 0 prints
    assert_equal_to_rounding(weights(tmp_path / "run"), weights(one_rank))
    for mine, theirs in zip(losses(tmp_path / "run"), losses(one_rank), strict=True):
        assert mine[:2] == theirs[:2] and mine[2] == pytest.approx(theirs[2], rel=1e-5)


def test_compiled_ranks_train_the_same(one_rank, data_dir, tmp_path):
    """Gradients are reduced when the backward graph of each compiled block is done."""
    results = train(2, data_dir, tmp_path / "run", "--compile", code=COMPILE_WITHOUT_INDUCTOR)
    assert "world size 2 x 2 micro-batches x 4 sequences" in succeeded(results)
    assert_equal_to_rounding(weights(tmp_path / "run"), weights(one_rank))


def test_muon_on_two_ranks_equals_one(data_dir, tmp_path):
    """Up to the bfloat16 of its matrix products."""
    flags = ["--optimizer", "muon", "--steps", "5"]
    for count in (1, 2):
        succeeded(train(count, data_dir, tmp_path / str(count), *flags))
    one, two = (weights(tmp_path / count, 5) for count in ("1", "2"))
    assert norm({name: one[name] - two[name] for name in one}) < 0.01 * norm(one)


def test_no_gloo_thread_outlives_the_group():
    """Such a thread may free a tensor while the interpreter exits, which aborts the process.

    After a user error, the traceback still refers to a model that holds the group. A model that
    outlived the group would wait for gloo's threads with Python's lock, and they for the lock.
    """
    results = ranks(2, code=LEAVE_THE_GROUP)
    assert sorted(results) == [(7, "", line) for line in ("\n0\n", "failed\n0\n")]


def test_torchrun_restarts_the_ranks_and_ctrl_c_saves_a_checkpoint(data_dir, tmp_path):
    """Rank 1 is killed in step 7 and training continues from step 4.

    Ctrl-C reaches torchrun and its processes, which then get a second signal from torchrun.
    """
    run, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(
        f"import os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\nimport train_gpt\n"
        f"from runtime import cli\nrank = int(os.environ['RANK'])\n"
        f"{textwrap.dedent(at_step(7, 1, KILL_ONCE))}\ncli.run(train_gpt.main)\n"
    )
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node=2 --max-restarts=1"
    torchrun += " --monitor-interval=0.2"
    command = [sys.executable, *torchrun.split(), script, *FLAGS, "--steps", "100000"]
    command += ["--data", data_dir, "--out_dir", run, "--resume"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(map(str, command), start_new_session=True, **pipes)

    def starts():
        return [record["step"] for record in log_of(run) if record["kind"] == "start"]

    wait_for(lambda: (run / "log.jsonl").exists() and len(starts()) == 2, started)
    wait_for(lambda: checkpoints.load_checkpoint(run)["step"] > 8, started)
    assert starts() == [0, 4]
    with pytest.raises(InputError, match="another process trains"):
        run_folder.lock_folder(run)
    os.killpg(started.pid, signal.SIGINT)
    output, errors = started.communicate(timeout=60)
    assert f"error: {distributed.LOST}\n" in errors  # of rank 0, when rank 1 was killed
    stopped = re.search(r"stopped by a signal: step (\d+) is saved, use --resume to", output)
    assert stopped, errors
    assert checkpoints.load_checkpoint(run)["step"] == log_of(run)[-1]["step"] == int(stopped[1])


def test_rank_that_hangs_ends_the_others(data_dir, tmp_path):
    hang = at_step(3, 1, "time.sleep(5) or os._exit(3)")
    first, second = train(2, data_dir, tmp_path / "run", code=SHORT_TIMEOUT + hang)
    assert (first[0], second[0]) == (2, 3)
    assert "or did not answer for" in distributed.LOST and "--resume" in distributed.LOST
    assert first[2].endswith(f"error: {distributed.LOST}\n")
    assert "Traceback" not in first[2]


def test_signal_to_any_rank_saves_the_step_and_stops_all(two_ranks, data_dir, tmp_path):
    run = tmp_path / "run"
    stopped = train(2, data_dir, run, "--pe", DRAWING, code=at_step(7, 1, STOP))
    out = succeeded(stopped)
    assert "stopped by a signal: step 7 is saved, use --resume to continue\nA traceback" in out
    assert not any("Warning" in errors for _, _, errors in stopped)
    assert checkpoint_names(run) == ["checkpoint_0000004.pt", "checkpoint_0000007.pt"]
    assert "from step 7" in succeeded(train(2, data_dir, run, "--pe", DRAWING, "--resume"))

    resumed = checkpoints.load_checkpoint(run)
    whole = checkpoints.load_checkpoint(two_ranks)
    assert len(whole["rng"]) == 2
    assert not torch.equal(whole["rng"][0]["cpu"], whole["rng"][1]["cpu"])
    for key in ("model", "optimizer", "rng"):
        assert digest(resumed[key]) == digest(whole[key])
    assert resumed["sampler"] == whole["sampler"]
    assert [step for kind, step, _ in losses(run) if kind == "train"] == [4, 7, 8, 12, 16, 20]
    assert losses(run)[3:] == losses(two_ranks)[2:]  # from step 10 on


def test_resume_with_another_world_size_is_equal_up_to_rounding(one_rank, data_dir, tmp_path):
    run = tmp_path / "run"
    for count, step in ((2, 6), (1, 13)):
        succeeded(train(count, data_dir, run, "--resume", code=at_step(step, 0, STOP)))
        assert checkpoints.load_checkpoint(run)["step"] == step
    succeeded(train(2, data_dir, run, "--resume"))
    assert_equal_to_rounding(weights(run), weights(one_rank))


def test_full_disk_stops_all_ranks(data_dir, tmp_path):
    run = tmp_path / "run"
    (line,) = error_lines(train(2, data_dir, run, code=FULL_DISK_AT_STEP_8))
    assert line.startswith(f"error: cannot write {run}/checkpoint_0000008.pt: No space left on")
    names = {"config.yaml", "log.jsonl", "checkpoint_0000004.pt"}
    assert {path.name for path in run.iterdir()} == names


def test_nan_loss_stops_all_ranks(data_dir, tmp_path):
    """The second micro-batch of rank 1 in step 7 gives NaN, found at the next log line, step 8."""
    run = tmp_path / "run"
    poison = at_step(7, 1, "torch.poison = 1") + POISON_A_LOSS
    (line,) = error_lines(train(2, data_dir, run, code=poison))  # printed once
    assert line == (
        "error: the loss of step 7 is NaN or Inf; "
        "to continue from checkpoint_0000004.pt, remove later ones, pass --resume, a lower --lr "
        "and --override lr"
    )
    assert checkpoint_names(run) == ["checkpoint_0000004.pt"]
    assert log_of(run)[-1]["step"] == 4
    assert all(x.isfinite().all() for x in weights(run, 4).values())


def test_user_errors_are_printed_once(data_dir, tmp_path):
    (tmp_path / "file").write_text("")
    for flags, message in (
        (["--pe", "cabel"], "did you mean cable?"),
        (["--out_dir", tmp_path / "file" / "run"], "cannot write"),  # detected by rank 0 only
        (["--tokens_per_step", "96"], "block_size 32 x world size 2 = 64: change one of them"),
    ):
        (line,) = error_lines(train(2, data_dir, tmp_path / "run", *flags))
        assert message in line
    assert not (tmp_path / "run").exists()


def test_ranks_that_see_different_checkpoints_are_refused(two_ranks, data_dir, tmp_path):
    """A network file system may show an older listing of the folder to some machines."""
    run = shutil.copytree(two_ranks, tmp_path / "run")
    flags = ["--pe", DRAWING, "--resume"]
    (line,) = error_lines(train(2, data_dir, run, *flags, code=LIST_STALE_CHECKPOINTS))
    assert "the checkpoint in" in line
    assert "differ between ranks" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_collected_unless_they_are_ignored(number):
    """As SIGHUP is after nohup; Slurm sends SIGUSR1 where asked to."""
    before = signal.getsignal(number)
    try:
        for handler, expected in ((signal.default_int_handler, [number]), (signal.SIG_IGN, [])):
            signal.signal(number, handler)
            with distributed.signals() as received:
                os.kill(os.getpid(), number)
            assert received == expected and signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)
