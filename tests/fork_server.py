"""Start programs without the seconds that importing PyTorch takes, for tests of shell scripts.

    with fork_server.start(folder): ...    # folder/python runs programs as python does

folder/python PROGRAM.py, -c CODE and -m torch.distributed.run run in a fork of a server that has
imported PyTorch, with the caller's folder, environment, arguments and streams. Everything else is
passed on to Python. The client ends by the program's signal or status; if it is
killed before, the program gets SIGTERM, and SIGKILL after PATIENCE seconds.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE = 10
TORCHRUN = "torch.distributed.run"
CLIENT = """#!{python} -ISE
import json, os, socket, sys
words = sys.argv[1:] or ["-"]
if not words[0].endswith(".py") and words[0] != "-c" and words[:2] != ["-m", {torchrun!r}]:
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
message = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [message], [0, 1, 2])
status = int(server.recv(100) or 1)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@contextlib.contextmanager
def start(folder: Path):
    """Start a server, write its client to folder/python, and stop the server at the end."""
    address, client = str(folder / "socket"), folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, torchrun=TORCHRUN, address=address))
    client.chmod(0o755)
    command = [sys.executable, __file__, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout and server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.terminate()


def serve(address: str) -> list[str]:
    """Accept commands; return in a new process for each, with the words of its command line."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, streams, _, _ = socket.recv_fds(client, 2**20, 3)
        if process := os.fork():
            ended = os.pidfd_open(process)
            if ended not in select.select([client, ended], [], [])[0]:  # the client was killed
                os.kill(process, signal.SIGTERM)
                if not select.select([ended], [], [], PATIENCE)[0]:
                    os.kill(process, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                client.send(str(status).encode())
            os._exit(0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        words, environment, cwd = json.loads(message)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        return words


def skip_fsync(descriptor: int) -> None:
    """Replace os.fsync, which takes milliseconds: files of tests need not survive power cuts."""


def run_program(words: list[str]) -> int:
    """Run a program as Python does, and return its status."""
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], os.getcwd()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *words[2:]], ""
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo
    import torch.distributed.launcher.api  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401

    os.fsync = skip_fsync
    gc.freeze()
    words = serve(sys.argv[1])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    status = run_program(words)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)  # without the seconds that freeing all modules takes
