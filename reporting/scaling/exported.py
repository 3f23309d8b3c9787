"""Export runs, load them by transformers, compare the two, and let each continue a text.

    python -m reporting.scaling.exported runs/full/ladder_2-512-lr0.002/cable --out_dir runs/ladder

Exports every run to RUN-exported (export_hf.py), loads that folder by transformers, and computes
the log-probability of each of the first tokens of the validation text by both, in float32. Writes
exported.json (hashes of checkpoint and weights, loss of both, largest difference of a
log-probability), a table, exported.md, and samples.md: texts by sample.py. Other runs that the
record holds are kept. An existing RUN-exported is compared as it is; if it is that of another
checkpoint, the program raises an error.
"""

import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli, plugins
from runtime.files import atomic
from runtime.loading import load_model

import numpy as np
import torch

from errors import InputError
from evaluation.records import shards_for_run
from hf_interop.modeling import hash_file
from model import cross_entropies
from reporting.formatting import Table, format_number
from reporting.loss_plots import describe_run
from reporting.scaling.training_logs import add_runs

ROOT = Path(__file__).parents[2]
METRIC = "Exported runs"
MAX_DIFFERENCE = 1e-3  # nats: rounding of float32 causes 1e-5


@dataclass
class Config:
    """Settings of the exports."""

    runs: list[str] = field(default_factory=list)
    """run folders"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    data: str | None = None
    """folder of shards; null: the training data"""
    tokens: int = cli.limited(1024, 1)
    """tokens of the validation text to compare"""
    prompt: str = "The history of"
    """text to continue"""
    max_new_tokens: int = cli.limited(600, 1, 10**9)
    """length of the continuation, in tokens"""
    out_dir: str = "runs"
    """folder for the record, the table and the texts"""

    def __post_init__(self):
        if not self.runs:
            raise InputError("no runs given: python -m reporting.scaling.exported runs/NAME ...")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "run folders"))
    out = Path(config.out_dir)
    runs = [export(Path(run), config) for run in config.runs]
    runs = add_runs(out / "exported.json", METRIC, runs, keys=("run",))
    table = make_table(runs).markdown()
    print(table)
    with atomic(out / "exported.md") as file:
        file.write(f"{table}\n".encode())
    with atomic(out / "samples.md") as file:
        file.write(make_samples(runs).encode())
    for name in ("exported.json", "exported.md", "samples.md"):
        print(f"wrote {out / name}")


def export(run: Path, config: Config) -> dict:
    """Export a run unless its folder exists, compare both, generate a text, and describe them."""
    from transformers import AutoModelForCausalLM

    folder = run.with_name(f"{run.name}-exported")
    if not folder.exists():
        run_program("export_hf.py", run, "--out_dir", folder)
    model, checkpoint = load_model(run, torch.device("cpu"))
    shards = shards_for_run(run, checkpoint, config.data)
    tokens = torch.from_numpy(shards.tokens[0][: config.tokens + 1].astype(np.int64))[None]
    loaded = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        weights = model.wte.weight[: loaded.config.vocab_size]  # without padding, as exported
        ours = cross_entropies(model.hidden(tokens[:, :-1])[0], weights, tokens[0, 1:])
        logits = loaded(tokens[:, :-1]).logits[0].float()
    theirs = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
    difference = (ours - theirs).abs().max().item()
    if not difference <= MAX_DIFFERENCE:
        raise InputError(
            f"{folder} has other log-probabilities than {run}, by up to {difference:.1e} nats: "
            "remove it, so that the run is exported again"
        )
    return describe_run(run) | {
        "checkpoint_sha256": checkpoint["sha256"],
        "step": checkpoint["step"],
        "weights_sha256": hash_file(folder / "model.safetensors"),
        "tokens": len(ours),
        "loss": ours.double().mean().item(),
        "exported_loss": theirs.double().mean().item(),
        "largest_difference": difference,
        "text": generate(run, config),
    }


def generate(run: Path, config: Config) -> str:
    """Return the text with which sample.py continues the prompt, on the CPU in float32."""
    flags = ["--prompt", config.prompt, "--max_new_tokens", config.max_new_tokens]
    printed = run_program("sample.py", run, *flags, "--device", "cpu", "--dtype", "float32")
    return printed[printed.index(config.prompt) :].strip()


def run_program(name: str, *flags) -> str:
    """Run a program with the plugins that are loaded here, and return what it prints.

    Raises InputError with its last line if it fails.
    """
    command = [sys.executable, str(ROOT / name), *map(str, flags)]
    for plugin in plugins.LOADED.values():
        command += ["--plugin", str(plugin.path)]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or [f"{name} failed"])[-1]
        raise InputError(problem.removeprefix("error: "))
    return done.stdout


def make_table(runs: list[dict]) -> Table:
    """Return the table of runs."""
    header = ["run", "checkpoint", "perplexity", "exported", "largest difference (nats)"]
    rows = [
        [
            run["run"],
            run["checkpoint_sha256"][:12],
            format_number(math.exp(run["loss"])),
            format_number(math.exp(run["exported_loss"])),
            f"{run['largest_difference']:.1e}",
        ]
        for run in runs
    ]
    return Table([header, *rows])


def make_samples(runs: list[dict]) -> str:
    """Return a page with the texts."""
    parts = ["# Texts of the models\n\nFrom `sample.py`, temperature 0.8, seed 1.\n"]
    parts += [f"\n## {run['run']}\n\n```text\n{run['text']}\n```\n" for run in runs]
    return "".join(parts)


if __name__ == "__main__":
    cli.run(main)
