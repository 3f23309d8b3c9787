"""Count the repository's functions that one training step and one evaluation execute, on a CPU.

    python tests/count_functions.py             # how many, in how many files
    python tests/count_functions.py --names     # which

The step is the first one of `cable` with configs/smoke.yaml; it starts the data loader's thread.
Functions have a name: no lambdas or generator expressions.
"""

import contextlib
import io
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import eval_extrapolation  # noqa: E402
import prepare_text  # noqa: E402
import train_gpt  # noqa: E402


def called(function, *arguments) -> tuple[list[str], object]:
    """Return "file: name" of the repository's functions that a call executes, and its result."""
    codes = set()

    def note(frame, event, argument):
        codes.add(frame.f_code)

    threading.setprofile(note)  # of threads that start meanwhile
    sys.setprofile(note)
    result = function(*arguments)
    sys.setprofile(None)
    threading.setprofile(None)
    codes.discard(called.__code__)
    named = [code for code in codes if not code.co_name.startswith("<")]
    paths = {path for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    own = [code for code in named if Path(code.co_filename) in paths]
    names = {f"{code.co_filename[len(str(ROOT)) + 1 :]}: {code.co_qualname}" for code in own}
    return sorted(names), result


def main():
    found, train_step = {}, train_gpt.Trainer.train_step

    def counted_step(trainer):
        found["step"], step = called(train_step, trainer)
        return step

    train_gpt.Trainer.train_step = counted_step
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        text, data, run = (f"{folder}/{name}" for name in ("text.txt", "data", "run"))
        Path(text).write_text("".join(f"line {n} of {n * n}\n" for n in range(2000)))
        prepare_text.main([text, "--out_dir", data])
        flags = ["--config", f"{ROOT}/configs/smoke.yaml", "--pe", "cable", "--steps", "1"]
        train_gpt.main([*flags, "--data", data, "--out_dir", run])
        found["evaluation"], _ = called(eval_extrapolation.main, [run, "--lengths", "64"])
    for name, functions in found.items():
        files = {function.partition(":")[0] for function in functions}
        print(f"{name}: {len(functions)} functions in {len(files)} files")
        if "--names" in sys.argv:
            print(*functions, sep="\n")


if __name__ == "__main__":
    main()
