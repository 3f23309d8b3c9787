"""Start programs without the seconds that importing PyTorch takes, for tests of shell scripts.

    with fork_server.start(folder): ...    # folder/python runs programs as python does

folder/python PROGRAM.py, in the root of the repository, runs the program in a fork of a server that
has imported PyTorch, with the caller's environment, arguments and streams. Everything else is
passed on to Python.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLIENT = """#!{python} -ISE
import json, os, socket, sys
words = sys.argv[1:]
is_program = words and words[0].endswith(".py") and os.path.dirname(words[0]) == ""
if not is_program or os.getcwd() != {root!r}:
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
message = json.dumps([words, dict(os.environ)]).encode()
socket.send_fds(server, [message], [0, 1, 2])
sys.exit(int(server.recv(100) or 1))
"""


@contextlib.contextmanager
def start(folder: Path):
    """Start a server, write its client to folder/python, and stop the server at the end."""
    address, client = str(folder / "socket"), folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, root=str(ROOT), address=address))
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
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            client.send(str(status % 256).encode())
            os._exit(0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        words, environment = json.loads(message)
        os.environ.clear()
        os.environ.update(environment)
        return words


def run_program(words: list[str]) -> int:
    """Run a program as Python does, and return its status."""
    sys.argv = words
    sys.path[0] = str(ROOT)
    try:
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
    import torch.utils.tensorboard  # noqa: F401

    gc.freeze()
    words = serve(sys.argv[1])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    status = run_program(words)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)  # without the seconds that freeing all modules takes
