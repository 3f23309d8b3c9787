"""Evaluate multiple-choice accuracy on HellaSwag (Zellers et al. 2019).

    python eval_hellaswag.py runs/cable runs/alibi                      # hub: 10,042 examples
    python eval_hellaswag.py runs/cable --source hellaswag_val.jsonl    # a file in the same format

acc is the percentage of examples whose right ending, one of four, has
the highest log-likelihood; acc_norm divides each by the ending's
characters. Text, tokenization and scores follow lm-evaluation-harness
(EleutherAI), task hellaswag, zero-shot. As there, contexts do not begin
with <|endoftext|>, although documents did in training.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import cli, devices
from runtime.validation import find_mismatch

import msgspec
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from errors import InputError
from evaluation import runner
from setting import setting
from text_data import text_sources
from text_data.tokenizer import run_tokenizer
from training.checkpoints import load_checkpoint, runs_among

HUB: dict = {"path": "Rowan/hellaswag", "split": "validation"}


class Row(msgspec.Struct):
    """An example of the data set."""

    activity_label: str
    ctx_a: str
    ctx_b: str
    endings: tuple[str, str, str, str]
    label: Literal[0, 1, 2, 3, "0", "1", "2", "3"]


@dataclass
class Config(runner.EvaluationConfig):
    """Settings of the HellaSwag evaluation."""

    source: str | None = None
    """.jsonl or .parquet file with the columns of Rowan/hellaswag; null: its validation split"""
    max_examples: int | None = setting(None, 1)
    """evaluate only this number of examples, the first ones; null: all"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    with runner.evaluation_ranks(config) as ranks:
        config.runs = runs_among(config.runs)
        for run in config.runs:
            load_checkpoint(run, causal=True)  # raises before a download
        examples = load_examples(config.source)
        for run in config.runs:
            evaluate(runner.load_run(run, config, ranks), examples, config)


def load_examples(source: str | None) -> list[dict]:
    """Return [{"context", "endings", "label"}] of a file or the hub; InputError: wrong row."""
    rows, name, _ = text_sources.load_table(source, HUB, "--source", Row.__struct_fields__)
    examples = []
    for number, row in enumerate(rows, 1):
        if problem := find_mismatch(row, Row):
            what = f"{name}: example {number} is not in HellaSwag's format ({problem})"
            raise InputError(f"{what}: repair it; the split test has no labels")
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        endings, label = [*map(preprocess, row["endings"])], int(row["label"])
        examples.append(dict(context=preprocess(context), endings=endings, label=label))
    return examples


def preprocess(text: str) -> str:
    """Return the text without WikiHow's markup, as the harness does."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def evaluate(loaded: runner.LoadedRun, examples: list[dict], config: Config) -> None:
    """Write and print a run's record."""
    run, chosen = loaded.path, examples[: config.max_examples]
    tokenizer = run_tokenizer(run, loaded.checkpoint)
    loaded.model.set_vocabulary(tokenizer.vocab_size)
    split = Path(config.source).name.partition(".")[0] if config.source else HUB["split"]
    digest = hashlib.sha256(json.dumps(examples).encode()).hexdigest()
    data = {"dataset": "hellaswag", "split": split, "tokenizer": tokenizer.name}
    protocol = {"name": "lm-evaluation-harness", "prompt_examples": 0}
    identity = loaded.identity() | {"data": data | {"sha256": digest}, "protocol": protocol}
    record = runner.make_header(run, identity) | {"examples": len(chosen)}
    path = runner.record_path(run, "eval", "hellaswag", split)
    scores = np.array(runner.existing_record(path, identity).get("log_likelihoods", []))
    is_new = len(scores) < len(chosen)
    if is_new:
        scores, items = np.zeros((len(chosen), 4)), np.arange(len(chosen))
        for (item,) in loaded.batches(items, runner.BATCH_TOKENS, "HellaSwag", "example"):
            context, endings = chosen[item]["context"], chosen[item]["endings"]
            pairs = [encode_pair(tokenizer, context, f" {ending}") for ending in endings]
            scores[item] = log_likelihoods(loaded, pairs)
        record["log_likelihoods"] = loaded.sum(scores).tolist()
        record["provenance"] = devices.provenance(loaded.device)
    for name, right in answered(scores[: len(chosen)], chosen).items():
        record |= runner.mean_with_error(name, right)
        error = record[f"{name}_se"]
        spread = "—" if error is None else f"{100 * error:.2f}"
        percent = f"{100 * record[name]:.2f} ± {spread}%"
        print(f"{run}: {name} {percent} of {len(chosen)} examples")
    if is_new and loaded.processes.rank == 0:
        runner.write_record(run, path, record)
    runner.report_record(run, path, loaded.processes, is_repeated=not is_new)


def encode_pair(tokenizer, context: str, continuation: str) -> tuple[list, list]:
    """Return the tokens of a context and its continuation, as the harness does.

    Spaces at the context's end belong to the continuation, whose tokens are those of the whole text
    after as many as the context has by itself.
    """
    tokens = tokenizer.encode(context.rstrip())
    return tokens, tokenizer.encode(context + continuation)[len(tokens) :]


def log_likelihoods(loaded: runner.LoadedRun, pairs: list[tuple[list, list]]) -> np.ndarray:
    """Return log p(continuation | context) of each pair of tokens in nats, (B,) float64.

    Longer sequences than the encoding supports keep their last tokens.
    """
    longest = loaded.model.max_context or cli.LONGEST_LENGTH  # inputs
    sequences = [torch.tensor((x + y)[-1 - max(longest, len(y)) :]) for x, y in pairs]
    endings = [torch.tensor(ending, dtype=torch.int64) for _, ending in pairs]
    tokens = pad_sequence(sequences, batch_first=True)[:, :-1]  # (B, T)
    # (B, t); the loss of -100 is 0.
    targets = pad_sequence(endings, batch_first=True, padding_value=-100)
    first = [[len(x) - len(y) - 1] for x, y in zip(sequences, endings, strict=True)]
    positions = torch.tensor(first) + torch.arange(targets.size(1))
    positions = positions.clamp(max=tokens.size(1) - 1)
    return -loaded.losses(tokens, targets, positions).sum(1)


def answered(scores: np.ndarray, examples: list[dict]) -> dict[str, np.ndarray]:
    """Return which examples (N,) are right by acc and acc_norm; scores: (N, 4)."""
    labels = [example["label"] for example in examples]
    lengths = [[len(ending) for ending in example["endings"]] for example in examples]
    # An empty ending is divided by almost zero: it is never the best.
    values = {"acc": scores, "acc_norm": scores / np.maximum(lengths, 1e-9)}
    return {metric: value.argmax(1) == labels for metric, value in values.items()}


if __name__ == "__main__":
    cli.run(main)
