"""A `python` whose processes have torch imported: forks of a server, which saves seconds for each.

    subprocess.run([fork_server.python(), "train_gpt.py"])
    subprocess.run(["bash", "scripts/table4.sh"], env={"PATH": fork_server.search_path()})

The server imports packages and computes nothing, because a fork of a process with threads may hang.
It imports no module of this repository, so programs of a copy run their own code. A command that
needs a new interpreter gets one: other flags than -c and -m, no program, or other values of the
variables that packages read while they are imported (READ_AT_IMPORT).

SIGINT and SIGTERM reach the program, whose status `python` returns; if `python` is killed, so is
the program. The program is in the process group of the server. Its sys.executable is `python`.
"""

import atexit
import contextlib
import functools
import io
import os
import shutil
import signal
import sys

READ_AT_IMPORT = ("CUDA", "KMP_", "MKL_", "MPL", "OMP_", "PYTHON", "PYTORCH", "TORCH", "TRITON")
SERVERS = []


def relevant(environment):
    """Return the variables that may change what an import does."""
    return {
        name: environment[name]
        for name in environment
        if name.startswith(READ_AT_IMPORT) and not name.startswith("TORCHELASTIC_")
    }


# Server


def serve(address):
    """Fork for each request; return only in a fork, with the words of its command line."""
    import gc
    import json
    import selectors
    import socket

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit(0)  # forks may hang
    gc.freeze()  # collections do not write to the pages that forks share
    print("ready", flush=True)
    ready = selectors.DefaultSelector()
    for file in (listener, 0):  # 0 is closed by the process that started the server
        ready.register(file, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj == 0:
                sys.exit()
            elif key.fileobj == listener:
                client, _ = listener.accept()
                size, files, _, _ = socket.recv_fds(client, 8, 3)
                request = json.loads(client.recv(int.from_bytes(size), socket.MSG_WAITALL))
                child = os.fork()
                if child == 0:
                    become(request, files)
                    for file in (ready, listener, client):
                        file.close()
                    return request["words"]
                for file in files:
                    os.close(file)
                client.sendall(f"{child}\n".encode())
                ready.register(client, selectors.EVENT_READ, child)
                ready.register(os.pidfd_open(child), selectors.EVENT_READ, client)
            elif isinstance(key.fileobj, socket.socket):  # a client was killed
                ready.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
            else:  # a fork has ended
                status = os.waitid(os.P_PIDFD, key.fd, os.WEXITED)
                assert status
                killed = status.si_code != os.CLD_EXITED
                with contextlib.suppress(OSError):
                    key.data.sendall(
                        f"{-status.si_status if killed else status.si_status}\n".encode()
                    )
                with contextlib.suppress(KeyError):
                    ready.unregister(key.data)
                ready.unregister(key.fileobj)
                key.data.close()
                os.close(key.fd)


def become(request, files):
    """Take over the folder, the environment and the standard streams of a request."""
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    sys.executable = request["python"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    error = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(error, errors="backslashreplace", line_buffering=True)


def run(words):
    """Run a program as `python WORD...` does, and exit without the destruction of all modules."""
    import threading

    try:
        execute(words)
        status = 0
    except SystemExit as stop:
        status = stop.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def execute(words):
    import runpy

    start, *arguments = words
    if start == "-c":
        code, *arguments = arguments
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif start == "-m":
        sys.argv, sys.path[0] = arguments, os.getcwd()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(start))
        runpy.run_path(start, run_name="__main__")


# Clients


@functools.cache
def python(without=()):
    """Return the path of the `python`; start its server, which ends with this process.

    without: environment variables that programs do not have. On other systems than Linux, and where
    imports start threads (without OMP_NUM_THREADS=1), the path is that of the interpreter.
    """
    if sys.platform != "linux":
        return sys.executable
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    environment = {name: os.environ[name] for name in os.environ if name not in without}
    address, launcher = f"{folder}/socket", f"{folder}/python"
    with open(launcher, "w") as file:
        file.write(
            f"#!{sys.executable} -IS\nimport sys\n"
            f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            f"import fork_server\n"
            f"fork_server.request({address!r}, {sys.executable!r}, {relevant(environment)!r})\n"
        )
    os.chmod(launcher, 0o755)
    command = [sys.executable, __file__, address]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
    SERVERS.append(server)  # keeps its standard input open
    assert server.stdout
    return launcher if server.stdout.readline() == b"ready\n" else sys.executable


def search_path(without=()):
    """Return a PATH with this `python` first, then the programs of the active environment."""
    folders = map(os.path.dirname, (python(without), sys.executable))
    return ":".join([*folders, os.environ["PATH"]])


def request(address, executable, variables):
    """Have the server run sys.argv, and exit with its status; or become a new interpreter."""
    words = sys.argv[1:]
    is_program = len(words) > (words[:1] in (["-c"], ["-m"]))
    is_program = is_program and (words[0] in ("-c", "-m") or not words[0].startswith("-"))
    if not is_program or relevant(os.environ) != variables:
        os.execv(executable, [executable, *words])
    import json
    import socket

    content = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    content["python"] = sys.argv[0]
    message = json.dumps(content).encode()
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    socket.send_fds(server, [len(message).to_bytes(8)], [0, 1, 2])
    server.sendall(message)
    answers = server.makefile()
    child = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    status = int(answers.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    import jsonargparse  # noqa: F401
    import numpy  # noqa: F401
    import torch._dynamo  # noqa: F401  # which optimizers import
    import yaml  # noqa: F401

    run(serve(sys.argv[1]))
