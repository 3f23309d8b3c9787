"""Evaluate multiple-choice accuracy on HellaSwag (Zellers et al. 2019).

    python eval_hellaswag.py runs/cable runs/alibi                      # hub: 10,042 examples
    python eval_hellaswag.py runs/cable --source hellaswag_val.jsonl    # a file in the same format

Each example is a context and four endings, one of which is right. acc is the
percentage of examples whose right ending has the highest log-likelihood;
acc_norm divides each by the length of the ending in characters. Text,
tokenization and scores follow lm-evaluation-harness (EleutherAI), task
hellaswag, zero-shot. As there, contexts are not preceded by <|endoftext|>,
although documents were in training.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices
from runtime.checkpoints import load_checkpoint

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from errors import InputError
from evaluation import runner
from evaluation.runner import EvaluationConfig, LoadedRun
from text_data import text_sources
from text_data.data_loader import BATCH_TOKENS
from text_data.tokenizer import run_tokenizer

HUB: dict = {"path": "Rowan/hellaswag", "split": "validation"}
COLUMNS = ("activity_label", "ctx_a", "ctx_b", "endings", "label")


@dataclass
class Config(EvaluationConfig):
    """Settings of the HellaSwag evaluation."""

    source: str | None = None
    """.jsonl or .parquet file of examples (activity_label, ctx_a, ctx_b, endings, label); null:
    the validation split from the hub"""
    max_examples: int | None = cli.limited(None, 1)
    """evaluate only this number of examples, the first ones; null: all"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=runner.RUNS_ARGUMENT)
    with runner.evaluation_ranks(config) as ranks:
        for run in config.runs:
            load_checkpoint(run, causal=True)  # raises before a download
        examples = load_examples(config.source)
        for run in config.runs:
            evaluate(runner.load_run(run, config, ranks), examples, config)


def load_examples(source: str | None) -> list[dict]:
    """Return [{"context", "endings", "label"}] as the harness forms them.

    None: of the hub. Raises InputError for a row in another format.
    """
    rows, name, _ = text_sources.load_table(source, HUB, "--source", COLUMNS)
    examples = []
    for number, row in enumerate(rows, 1):
        try:
            context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
            endings, label = [*map(preprocess, row["endings"])], int(row["label"])
            endings[label]
        except (KeyError, AttributeError, TypeError, ValueError, IndexError):
            raise InputError(
                f"{name}: example {number} is not in HellaSwag's format: it needs activity_label, "
                "ctx_a, ctx_b, endings, and label, the index of the right ending (the split test "
                "has no labels)"
            ) from None
        examples.append({"context": preprocess(context), "endings": endings, "label": label})
    return examples


def preprocess(text: str) -> str:
    """Return the text without WikiHow's markup, as the harness does."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def evaluate(loaded: LoadedRun, examples: list[dict], config: Config) -> None:
    """Write and print a run's record; InputError: an ending is too long."""
    model, run = loaded.model, loaded.path
    tokenizer = run_tokenizer(run, loaded.checkpoint)
    model.set_vocabulary(tokenizer.vocab_size)
    chosen = examples[: config.max_examples]
    pairs = [
        [encode_pair(tokenizer, row["context"], " " + ending) for ending in row["endings"]]
        for row in chosen
    ]
    longest = max(len(ending) for example in pairs for _, ending in example)
    if longest > (model.max_context or longest):
        raise InputError(
            f"{run}: an ending of {longest} tokens is longer than the {model.max_context} that "
            f"{loaded.checkpoint['gpt']['pe']} supports: remove this run"
        )
    split = Path(config.source).name.partition(".")[0] if config.source else HUB["split"]
    path = runner.record_path(run, "eval", "hellaswag", split)
    identity = {
        **loaded.identity(),
        "data": {
            "dataset": "hellaswag",
            "split": split,
            "tokenizer": tokenizer.name,
            "sha256": hashlib.sha256(json.dumps(examples).encode()).hexdigest(),
        },
        "protocol": {"name": "lm-evaluation-harness", "prompt_examples": 0},
    }
    header = runner.make_header(run, identity)
    scores = runner.existing_record(path, identity).get("log_likelihoods", [])
    is_new = len(scores) < len(chosen)
    if is_new:
        batches = loaded.batches(np.arange(len(chosen)), BATCH_TOKENS, "HellaSwag", "example")
        own = {number: log_likelihoods(loaded, pairs[number]) for (number,) in batches}
        found = dict(item for part in loaded.processes.gather(own) for item in part.items())
        scores = [found[number] for number in range(len(chosen))]
    else:
        print(f"{run} is already evaluated")
    result = accuracies(scores, chosen)
    if loaded.processes.rank == 0 and is_new:
        record = header | result | {"log_likelihoods": scores}
        record["provenance"] = devices.provenance(loaded.device)
        runner.write_record(run, path, record)
    for metric in ("acc", "acc_norm"):
        value, error = result[metric], result[f"{metric}_se"]
        deviation = "—" if error is None else f"{100 * error:.2f}"
        print(f"{run}: {metric} {100 * value:.2f} ± {deviation}% of {len(chosen)} examples")
    print(f"record: {path}")


def encode_pair(tokenizer, context: str, continuation: str) -> tuple[list, list]:
    """Return the tokens of a context and its continuation, as the harness does.

    Spaces at the context's end belong to the continuation, whose tokens are
    those of the whole text after as many as the context has by itself.
    """
    tokens = tokenizer.encode(context.rstrip())
    return tokens, tokenizer.encode(context + continuation)[len(tokens) :]


def log_likelihoods(loaded: LoadedRun, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
    """Return log p(continuation | context) of each pair in nats, summed.

    Longer sequences than the encoding supports keep their last tokens.
    """
    model = loaded.model
    keep = (model.max_context or -1) + 1  # the last token is a target only
    sequences = [torch.tensor((context + ending)[-keep:]) for context, ending in pairs]
    tokens = pad_sequence(sequences, batch_first=True).to(loaded.device)  # (B, T)
    last = torch.tensor([len(sequence) - 1 for sequence in sequences])[:, None]
    counts = [len(ending) for _, ending in pairs]
    offsets = torch.arange(1, 1 + max(counts))
    positions = (last - offsets).clamp(min=0).to(loaded.device)  # (B, t), the last one first
    with devices.autocast(loaded.device, loaded.dtype):
        losses = model.losses(tokens[:, :-1], tokens.gather(1, positions + 1), positions)
    rows = zip(losses.double(), counts, strict=True)
    return [-row[:count].sum().item() for row, count in rows]


def accuracies(scores: list[list[float]], examples: list[dict]) -> dict:
    """Return acc and acc_norm (fractions), their errors, and the examples."""
    result: dict = {"examples": len(examples)}
    for metric in ("acc", "acc_norm"):
        right = []
        for logs, example in zip(scores, examples, strict=False):
            # An empty ending is divided by almost zero: it is never the best.
            lengths = [max(len(ending), 1e-9) for ending in example["endings"]]
            values = np.divide(logs, lengths) if metric == "acc_norm" else logs
            right.append(np.argmax(values) == example["label"])
        error = np.std(right, ddof=1) / len(right) ** 0.5 if len(right) > 1 else None
        result |= {metric: float(np.mean(right)), f"{metric}_se": error and float(error)}
    return result


if __name__ == "__main__":
    cli.run(main)
