"""Tests of fork_server.py, whose `python` other tests use in place of the interpreter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fork_server
import pytest

HAS_TORCH = "import sys; print('torch' in sys.modules, *sys.argv)"


def run(*words, **environment):
    return subprocess.run(
        [fork_server.python(), *words],
        text=True,
        capture_output=True,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(os.environ.get("OMP_NUM_THREADS") != "1", reason="needs OMP_NUM_THREADS=1")
def test_a_fork_has_torch_and_a_new_interpreter_where_it_is_needed():
    assert run("-c", HAS_TORCH, "a b").stdout == "True -c a b\n"
    assert run("-c", HAS_TORCH, OMP_NUM_THREADS="3").stdout == "False -c\n"
    assert run("-u", "-c", HAS_TORCH).stdout == "False -c\n"
    assert run("-c", HAS_TORCH, TORCHELASTIC_USE_AGENT_STORE="True").stdout == "True -c\n"


def test_without_forks_programs_have_an_interpreter():
    code = "import fork_server, sys; assert fork_server.python() == sys.executable"
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_environment_of_one_fork_does_not_reach_the_next():
    code = "import os; print(os.environ.get('MINE')); os.environ['MINE'] = 'changed'"
    assert run("-c", code, MINE="here").stdout == "here\n"
    assert run("-c", code).stdout == "None\n"


@pytest.mark.parametrize(
    "code, status, error",
    [
        ("import sys; sys.exit('message')", 1, "message\n"),
        ("import sys; sys.exit(7)", 7, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_status_and_errors_are_those_of_the_program(code, status, error):
    done = run("-c", code)
    assert done.returncode == status and done.stderr.endswith(error)
    assert bool(done.stderr) == bool(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_program(number):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [fork_server.python(), "-c", code]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE)
    program = Path("/proc", process.stdout.readline().strip())
    process.send_signal(number)
    assert process.wait(timeout=60) == -number
    end = time.monotonic() + 60
    while program.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not program.exists()
