"""Evaluate multiple-choice accuracy on HellaSwag (Zellers et al. 2019).

    python eval_hellaswag.py runs/cable runs/alibi                      # hub: 10,042 examples
    python eval_hellaswag.py runs/cable --source hellaswag_val.jsonl    # a file in the same format

Each example is a context and four endings, one of which is right. acc is the percentage of examples
whose right ending has the highest log-likelihood. acc_norm divides each log-likelihood by the
length of the ending in characters. Text, tokenization and scores follow lm-evaluation-harness
(EleutherAI), task hellaswag, zero-shot. As there, contexts are not preceded by <|endoftext|>,
although documents were in training.

Each run gets a JSON record next to its checkpoints, eval_hellaswag_validation.json or
eval_hellaswag_{FILE}.json. It is written every few hundred examples; an interrupted evaluation
resumes there.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.files import locked
from runtime.loading import load_model, run_tokenizer
from runtime.provenance import provenance

import numpy as np
import torch
from tqdm import tqdm

from errors import InputError
from evaluation.records import (
    existing_record,
    make_header,
    record_identity,
    record_path,
    write_record,
)
from evaluation.runner import RUNS_ARGUMENT, EvaluationConfig, supports
from model import GPT, cross_entropies
from reporting.columns import in_order
from reporting.metrics import ACCURACY
from text_data import text_sources
from text_data.data_loader import BATCH_TOKENS

HUB: dict = {"path": "Rowan/hellaswag", "split": "validation"}
BLOCK = 256  # examples between two writes of the record

Pair = tuple[list[int], list[int]]  # tokens of a context and of one ending


@dataclass
class Config(EvaluationConfig):
    """Settings of the HellaSwag evaluation."""

    source: str | None = None
    """.jsonl or .parquet file of examples (activity_label, ctx_a, ctx_b, endings, label); null:
    the validation split from the hub"""
    max_examples: int | None = None
    """evaluate only this number of examples, the first ones; null: all"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""

    def problems(self) -> list[str]:
        return super().problems() + cli.check_minimums(self, max_examples=1)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=RUNS_ARGUMENT)
    device, dtype = devices.select_device(config.device, config.dtype)
    for run in config.runs:
        load_checkpoint(run, causal=True, weights=False)  # raises before anything is downloaded
    examples = load_examples(config.source)
    records = [evaluate(run, examples, config, device, dtype) for run in config.runs]
    records = in_order(records)
    print()
    print(ACCURACY.table(records).markdown())
    print(ACCURACY.caption(records))


def load_examples(source: str | None) -> list[dict]:
    """Return [{"context", "endings", "label"}] from a file, or from the hub if `source` is None.

    Texts are preprocessed as in the harness. Raises InputError for a source that is not HellaSwag.
    """
    import datasets

    datasets.disable_progress_bars()
    if source is None:
        name, arguments = HUB["path"], HUB
    elif Path(source).is_file() and text_sources.table_format(Path(source)):
        name = source
        arguments = text_sources.load_arguments([Path(source)])
        arguments["streaming"] = True
    else:
        raise InputError(
            f"--source {source} is not a .jsonl or .parquet file: "
            "use one, or remove --source to load the examples from the hub"
        )
    remedy = "repair it, or use another --source"
    with text_sources.raise_input_errors(name, remedy, is_local=source is not None):
        rows = list(datasets.load_dataset(**arguments))
    if not rows:
        raise InputError(f"{name} holds no examples: use another --source")
    for number, row in enumerate(rows, 1):
        if not is_example(row):
            raise InputError(
                f"{name}: example {number} is not in HellaSwag's format: it needs activity_label, "
                "ctx_a, ctx_b, endings, and label, the index of the right ending (the split test "
                "has no labels)"
            )
    return [parse_example(row) for row in rows]


def is_example(row: dict) -> bool:
    """Return whether a row has all fields of a HellaSwag example with a label."""
    endings, label = row.get("endings"), str(row.get("label"))
    if not isinstance(endings, list):
        return False
    texts = [row.get("activity_label"), row.get("ctx_a"), row.get("ctx_b"), *endings]
    if not all(isinstance(text, str) for text in texts):
        return False
    return label.isdecimal() and int(label) < len(endings)


def parse_example(row: dict) -> dict:
    """Return {"context", "endings", "label"} as the harness forms them."""
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return {
        "context": preprocess(context),
        "endings": [preprocess(ending) for ending in row["endings"]],
        "label": int(row["label"]),
    }


def preprocess(text: str) -> str:
    """Return the text without WikiHow's markup in brackets, as the harness does."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def evaluate(
    run: str, examples: list[dict], config: Config, device: torch.device, dtype: torch.dtype
) -> dict:
    """Return the record of one run over the first config.max_examples examples.

    Raises InputError if an ending alone is longer than the encoding's longest context.
    """
    model, checkpoint = load_model(run, device, config.attention, dtype=dtype)
    tokenizer = run_tokenizer(run, checkpoint)
    count = min(len(examples), config.max_examples or len(examples))
    pairs = [encode_example(tokenizer, example) for example in examples[:count]]
    longest = max(len(ending) for example in pairs for _, ending in example)
    if not supports(model, longest):
        raise InputError(
            f"{run}: an ending of {longest} tokens is longer than the {model.max_context} that "
            f"{checkpoint['gpt']['pe']} supports: remove this run"
        )

    split = Path(config.source).name.partition(".")[0] if config.source else HUB["split"]
    path = record_path(run, "eval", "hellaswag", split)
    identity = {
        **record_identity(model, checkpoint, dtype),
        "data": {
            "dataset": "hellaswag",
            "split": split,
            "tokenizer": tokenizer.name,
            "sha256": hashlib.sha256(json.dumps(examples).encode()).hexdigest(),
        },
        "protocol": {"name": "lm-evaluation-harness", "prompt_examples": 0},
    }

    def stored_scores() -> list[list[float]]:
        return (existing_record(path, identity) or {}).get("log_likelihoods", [])

    header = make_header(run, identity)
    scores = stored_scores()
    if len(scores) >= count:
        print(f"{run} is already evaluated")

    def make_record() -> dict:
        """Return the record of the examples scored so far, without their log-likelihoods."""
        done = len(scores[:count])
        return {
            **header,
            "examples": done,
            **accuracies(scores[:done], examples),
            "truncated_sequences": count_truncated(model, pairs[:done]),
        }

    with tqdm(
        total=count,
        initial=min(len(scores), count),
        desc=Path(run).name,
        unit=" examples",
        disable=None,
    ) as bar:
        while len(scores) < count:
            block = pairs[len(scores) : min(len(scores) + BLOCK, count)]
            scores += score_examples(model, block, tokenizer.vocab_size, device, dtype)
            origin = provenance(device)
            with locked(path):
                stored = stored_scores()  # another evaluation may be ahead
                if len(stored) > len(scores):
                    scores = stored
                else:
                    record = make_record() | {"log_likelihoods": scores}
                    write_record(run, path, {**record, "provenance": origin})
            bar.update(min(len(scores), count) - bar.n)
    print(f"record: {path}")
    return make_record()


def encode_example(tokenizer, example: dict) -> list[Pair]:
    """Return the tokens of the context and an ending, for each ending."""
    return [
        encode_pair(tokenizer, example["context"], " " + ending) for ending in example["endings"]
    ]


def encode_pair(tokenizer, context: str, continuation: str) -> Pair:
    """Return the tokens of a context and of its continuation, divided as in the harness.

    Spaces at the end of the context belong to the continuation. The continuation's tokens are those
    of the whole text after the number of tokens that the context has by itself.
    """
    tokens = tokenizer.encode(context.rstrip())
    return tokens, tokenizer.encode(context + continuation)[len(tokens) :]


def count_truncated(model: GPT, pairs: list[list[Pair]]) -> int:
    """Return the number of sequences that are longer than the encoding's longest context."""
    lengths = [len(context) + len(ending) for example in pairs for context, ending in example]
    return sum(not supports(model, length - 1) for length in lengths)


def score_examples(
    model: GPT, pairs: list[list[Pair]], vocab_size: int, device: torch.device, dtype: torch.dtype
) -> list[list[float]]:
    """Return the log-likelihoods of the endings of each example, in nats."""
    flat = [pair for example in pairs for pair in example]
    scores = iter(log_likelihoods(model, flat, vocab_size, device, dtype))
    return [[next(scores) for _ in example] for example in pairs]


@torch.no_grad()
def log_likelihoods(
    model: GPT, pairs: list[Pair], vocab_size: int, device: torch.device, dtype: torch.dtype
) -> list[float]:
    """Return log p(continuation | context) of each pair in nats, summed over its tokens.

    Batches are formed of sequences of similar length and padded on the right, where causal
    attention ignores it. Sequences that exceed the encoding's longest context keep their last
    tokens. Embeddings from `vocab_size` on are padding of the vocabulary and get no probability.
    """
    if model.max_context is None:
        keep = max(len(context) + len(ending) for context, ending in pairs)
    else:
        keep = model.max_context + 1  # the last token is a target only
    sequences = [(context + ending)[-keep:] for context, ending in pairs]
    counts = [len(ending) for _, ending in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -len(sequences[i]))
    sums = [0.0] * len(pairs)
    while order:
        length = len(sequences[order[0]]) - 1  # inputs of the longest sequence of the batch
        batch_size = max(1, BATCH_TOKENS // length)
        batch, order = order[:batch_size], order[batch_size:]
        inputs = torch.zeros(len(batch), length, dtype=torch.int64)
        is_ending = torch.zeros(len(batch), length, dtype=torch.bool)  # an ending is predicted here
        targets = []
        for row, i in enumerate(batch):
            tokens, count = sequences[i], counts[i]
            last = len(tokens) - 1
            inputs[row, :last] = torch.tensor(tokens[:-1])
            is_ending[row, last - count : last] = True
            targets += tokens[len(tokens) - count :]
        with devices.autocast(device, dtype):
            hidden = model.hidden(inputs.to(device))[is_ending.to(device)]  # (targets, C)
            losses = cross_entropies(
                hidden, model.wte.weight[:vocab_size], torch.tensor(targets).to(device)
            )
        ending_losses = losses.double().cpu().split([counts[i] for i in batch])
        for i, ending in zip(batch, ending_losses, strict=True):
            sums[i] = -ending.sum().item()
    return sums


def accuracies(scores: list[list[float]], examples: list[dict]) -> dict:
    """Return acc, acc_norm (fractions) and their standard errors over examples.

    scores: log-likelihoods of the endings of the first examples. The standard error of a single
    example is None.
    """
    result = {}
    for metric in ("acc", "acc_norm"):
        right = []
        for logs, example in zip(scores, examples, strict=False):
            weights = np.ones(len(logs))
            if metric == "acc_norm":
                # An empty ending has length zero; dividing by almost zero makes it never the best.
                weights = [max(len(ending), 1e-9) for ending in example["endings"]]
            right.append(np.argmax(np.divide(logs, weights)) == example["label"])
        result[metric] = float(np.mean(right))
        result[f"{metric}_se"] = None
        if len(right) > 1:
            result[f"{metric}_se"] = float(np.std(right, ddof=1) / math.sqrt(len(right)))
    return result


if __name__ == "__main__":
    cli.run(main)
