"""Compare what the programs of two commits compute, bit for bit, on this machine.

    python tests/compare_commits.py BASE NEW             # folders of checkouts, or commits
    python tests/compare_commits.py 33ce519 . --keep /tmp/compared

Both commits train ten encodings as decoders and as encoders, resume each run with more steps, train
on the recall task, evaluate, write reports, sample text and export the models: about three minutes
on two cores. Compared are logs, weights, records, tables, samples and the logits of the exported
models in transformers. Intended changes are listed in CHANGES. Exit status 1: something differs.
"""

import argparse
import contextlib
import csv
import fnmatch
import json
import os
import pickle
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# Intended differences between the commits, one row each: (kind, pattern of names[, new name]).
#   ignored  values may differ, or be missing in one commit
#   new      names that BASE does not have
#   removed  names that NEW does not have
#   rounded  numbers that NEW may round: compared to six significant digits
#   close    numbers, also in texts, differ by at most 20% or 0.001, the text around them is equal
#   renamed  a part of a name in BASE, and what it is called in NEW
# Names are "log/RUN/KIND STEP/FIELD", "record/RUN/FILE/FIELD", "table/FILE",
# "table/FILE.csv/COLUMN", "weights/RUN/NAME", "logits/RUN" and "sample/RUN".
# RUN is clm/ENCODING, mlm/ENCODING or recall/ENCODING.
CHANGES = [
    ("ignored", "log/*/start *"),  # of the machine and the commit
    ("ignored", "log/*/ms"),
    ("ignored", "log/*/data_ms"),
    ("ignored", "log/*/tokens_per_second"),
    ("ignored", "log/*/memory"),
    ("ignored", "record/*/provenance/*"),
    ("ignored", "record/*/checkpoint_sha256"),
    ("removed", "record/*/recipe"),
    ("new", "record/*/settings/*"),
    ("new", "record/*/training_text"),
    ("ignored", "table/clm/perplexity_*.md"),  # long verdicts: perplexity_*.csv, verdicts.csv
    # Wide tables have a row per encoding instead of a column; their .csv is compared.
    ("ignored", "table/clm/re*.md"),
    ("new", "table/*/verdicts.csv/key"),
    ("new", "table/*/verdicts.csv/others"),
    ("ignored", "record/*/attention"),  # "sdpa" was also the name of batched products
    # Evaluations exclude embeddings that pad the vocabulary; these models are hardly trained.
    ("close", "log/*/val */loss"),
    ("close", "record/*/lengths/*"),
    ("close", "table/*"),
    ("ignored", "table/clm/verdicts.csv/measured"),  # differences below their errors
    ("ignored", "table/clm/verdicts.csv/outcome"),
]
DIGITS = 6
CLOSE = 0.2
CLOSE_TO_ZERO = 1e-3
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
OUTCOMES = ("equal", "rounded", "close", "ignored", "different")
BOTH = ("rope", "cable", "alibi", "t5", "kerple", "learnable", "rope+cable")
ENCODINGS = {
    "clm": (*BOTH, "fox", "dape", "shape"),
    "mlm": (*BOTH, "fire", "nope", "cape"),
    "recall": ("rope",),
}
TRAIN = (
    "--data data --size quickstart --n_layer 2 --n_head 2 --n_embd 32 --block_size 32 "
    "--micro_batch 8 --tokens_per_step 512 --lr 5e-3 --warmup_steps 2 --val_tokens 512 "
    "--log_every 1 --val_every 10 --checkpoint_every 20 --device cpu --dtype float32"
)
OBJECTIVES = {"clm": "", "mlm": "--objective mlm", "recall": "--objective recall"}
STEPS = {"clm": (45, 52), "mlm": (12, 16), "recall": (12, 16)}  # fewer than 50 get no verdicts
EVALUATIONS = {  # program and flags, by objective
    "clm": (
        "eval_extrapolation --lengths 32,64,128 --dtype float32",
        "eval_extrapolation --lengths 32,64 --stride 16 --dtype float32 --max_tokens 2000",
        "eval_extrapolation --lengths 1x,4x --protocol same-targets --targets 8 --dtype float32",
        "eval_extrapolation --lengths 96 --cache_window 32 --dtype bfloat16 --windows 8",
        "eval_recall --distances 64,128 --passage 32 --trials 10 --dtype float32",
        "eval_receptive_field --lengths 32,64 --windows 5",
    ),
    "mlm": ("eval_extrapolation --lengths 32,128 --dtype float32",),
    "recall": ("eval_recall --distances 32,64 --trials 10 --dtype float32",),
    "learnable": ("eval_extrapolation --lengths 16,32 --dtype float32",),  # at most 32 positions
}


def write_text(folder):
    """Write ten files of random words."""
    folder.mkdir()
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=2 + n % 6)) for n in range(200)]
    for number in range(10):
        lines = [" ".join(generator.choices(words, k=12)) for _ in range(40)]
        (folder / f"{number}.txt").write_text("\n".join(lines))


def collect(checkout, work):
    """Run the programs of a checkout in a folder; write all values by name to values.pickle."""
    sys.path[0] = str(checkout)
    os.chdir(work)
    write_text(Path("text"))
    values = {}
    run_program("prepare_text", "text --out_dir data --val_every 5")
    for objective, encodings in ENCODINGS.items():
        for pe in encodings:
            run = f"{objective}/{pe}"
            flags = f"{TRAIN} {OBJECTIVES[objective]} --pe {pe} --out_dir {run}"
            for steps in STEPS[objective]:  # the second time, it resumes
                run_program("train_gpt", f"{flags} --steps {steps} --resume")
            for evaluation in EVALUATIONS.get(pe, EVALUATIONS[objective]):
                program, flags = evaluation.split(" ", 1)
                run_program(program, f"{run} {flags} --device cpu")
            values |= read_run(run)
            values |= read_model(run, objective)
        records = [str(path) for path in sorted(Path(objective).glob("*/eval_*"))]
        run_program("report", f"{shlex.join(records)} --out_dir reports/{objective}")
    for path in sorted(Path("reports").rglob("*")):
        name = f"table/{path.relative_to('reports')}"
        if path.suffix == ".csv":
            rows = list(csv.reader(path.read_text().splitlines()))
            values |= {f"{name}/{header}": cells for header, *cells in zip(*rows, strict=True)}
        elif path.suffix == ".md":
            values[name] = path.read_text().splitlines()
    Path("values.pickle").write_bytes(pickle.dumps(values))


def run_program(name, flags):
    """Run the `main` of a program at the root with flags in this process; return what it prints."""
    program = __import__(name)
    with open("output.txt", "a+") as output, open("errors.txt", "a") as errors:
        start = output.tell()
        print(f"$ {name}.py {flags}", file=output, flush=True)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            program.main(shlex.split(flags))
        output.seek(start)
        return output.read()


def read_run(run):
    """Return the values of a run's log and records by name."""
    values = {}
    for line in (Path(run) / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        values |= flatten(f"log/{run}/{entry.pop('kind')} {entry.pop('step')}", entry)
    for path in sorted(Path(run).glob("eval_*")):
        values |= flatten(f"record/{run}/{path.name}", json.loads(path.read_text()))
    return values


def flatten(name, value):
    """Return {name/key/...: value} of nested dictionaries."""
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in flatten(f"{name}/{key}", part).items()}


def read_model(run, objective):
    """Return the weights of a run, and the logits of its export in transformers, by name."""
    import torch
    import transformers

    from evaluation import runner  # has load_model in older commits, too

    model = runner.load_model(run, torch.device("cpu"), causal=None)[0]
    values = {f"weights/{run}/{name}": x.numpy() for name, x in model.state_dict().items()}
    if objective == "recall":
        return values
    exported = f"exported/{run.replace('+', '-')}"
    run_program("export_hf", f"{run} --out_dir {exported}")
    kind = "AutoModelForMaskedLM" if objective == "mlm" else "AutoModelForCausalLM"
    exported_model = getattr(transformers, kind).from_pretrained(exported, trust_remote_code=True)
    tokens = torch.randint(257, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values[f"logits/{run}"] = exported_model(tokens).logits.numpy()
    if objective == "clm":
        flags = f"{run} --prompt abc --max_new_tokens 20 --seed 3 --device cpu"
        values[f"sample/{run}"] = run_program("sample", flags)
    return values


def compare(base, new):
    """Return one line for each difference, and how many values had which outcome."""
    for _, old, renamed in (row for row in CHANGES if row[0] == "renamed"):
        base = {name.replace(old, renamed): value for name, value in base.items()}
    differences, counts = [], dict.fromkeys(OUTCOMES, 0)
    for name in sorted(base.keys() | new.keys()):
        allowed = {kind for kind, pattern, *_ in CHANGES if fnmatch.fnmatch(name, pattern)}
        x, y = base.get(name), new.get(name)
        allowed_here = {"ignored"}
        allowed_here |= {"new"} if name not in base else set()
        allowed_here |= {"removed"} if name not in new else set()
        if allowed & allowed_here:
            outcome = "ignored"
        elif name in base and name in new and equal(x, y):
            outcome = "equal"
        elif "rounded" in allowed and equal(rounded(x), rounded(y)):
            outcome = "rounded"
        elif "close" in allowed and name in base and name in new and close(x, y):
            outcome = "close"
        else:
            outcome = "different"
            missing = "" if name in new else " (missing in NEW)"
            missing = missing if name in base else " (missing in BASE)"
            differences.append(f"{name}{missing}: {describe(x, y)}")
        counts[outcome] += 1
    return differences, counts


def equal(x, y):
    """Return whether two values are equal, arrays bit for bit."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    return type(x) is type(y) and (x == y or (x != x and y != y))


def close(x, y):
    """Return whether the texts of two values differ in numbers only, slightly."""
    texts = [repr(value) for value in (x, y)]
    if NUMBER.sub("", texts[0]) != NUMBER.sub("", texts[1]):
        return False
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in texts]
    return np.allclose(*numbers, rtol=CLOSE, atol=CLOSE_TO_ZERO)


def rounded(value):
    """Return a value with its numbers rounded to six significant digits."""
    if isinstance(value, list):
        return [rounded(x) for x in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(f"{value:.{DIGITS}g}") if is_number else value


def describe(x, y):
    """Return how two values differ."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
        return f"{(x != y).mean():.1%} of {x.size} numbers, by at most {abs(x - y).max():.2g}"
    if isinstance(x, list) and isinstance(y, list):
        unequal = (i for i, pair in enumerate(zip(x, y, strict=False)) if not equal(*pair))
        at = next(unequal, min(len(x), len(y)))
        return f"{len(x)} -> {len(y)} entries; {at}: {x[at : at + 1]} -> {y[at : at + 1]}"
    return f"{x!r:.120} -> {y!r:.120}"


def main():
    parser = argparse.ArgumentParser(description="Compare what two commits compute.")
    parser.add_argument("commits", nargs=2, help="BASE and NEW: folders of checkouts, or commits")
    parser.add_argument("--keep", help="new folder for what the programs write; default: none")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collect:
        return collect(*map(Path, arguments.commits))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.keep or temporary).resolve()
        base, new = run_both(arguments.commits, folder)
    differences, counts = compare(base, new)
    for line in differences:
        print(line)
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    print(f"{' -> '.join(arguments.commits)}: {counted}")
    sys.exit(bool(differences))


def run_both(commits, folder):
    """Run the programs of both commits at the same time; return their values by name."""
    root = Path(__file__).resolve().parent.parent
    worktrees, processes = [], []
    try:
        for side, commit in zip(("base", "new"), commits, strict=True):
            work, checkout = folder / side, Path(commit)
            work.mkdir(parents=True)
            if not checkout.is_dir():
                checkout = folder / f"{side}-checkout"
                subprocess.run(
                    ["git", "worktree", "add", "--detach", checkout, commit], cwd=root, check=True
                )
                worktrees.append(checkout)
            environment = {
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "HF_MODULES_CACHE": str(work / "modules"),
                "HF_HUB_OFFLINE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            command = [sys.executable, __file__, "--collect", checkout.resolve(), work]
            processes.append(subprocess.Popen(command, env={**os.environ, **environment}))
        if any([process.wait() for process in processes]):
            sys.exit("error: the programs of a commit failed: see above, or the folder of --keep")
    finally:
        for process in processes:
            process.kill()
        for checkout in worktrees:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=root)
    return [
        pickle.loads((folder / side / "values.pickle").read_bytes()) for side in ("base", "new")
    ]


if __name__ == "__main__":
    main()
