"""How often does a model find the ending of a short scene that makes sense? HellaSwag (Zellers et al. 2019).

    python eval_hellaswag.py runs/cable runs/alibi                      # the 10,042 validation examples, from the hub
    python eval_hellaswag.py runs/cable --source hellaswag_val.jsonl    # or from a file with the same fields

acc: the ending of the highest log-likelihood is right; acc_norm: the same, each divided by the ending's length in characters. Texts,
tokens and scores are those of lm-evaluation-harness (EleutherAI), task hellaswag, zero examples in the prompt. As there, a context
stands at the beginning, without the <|endoftext|> that opened documents in training. Every checkpoint gets a JSON record beside it,
eval_hellaswag_validation.json, or eval_hellaswag_{FILE}.json, renewed every few hundred examples; interrupted, it goes on from there.
"""

import hashlib
import itertools
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from errors import InputError
from evaluation.records import existing_record, record_identity, record_path, run_labels
from model import GPT, cross_entropies
from reporting import tables
from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.loading import load_model
from runtime.provenance import provenance
from runtime.files import write_json
from text_data import text_sources, tokenization
from text_data.data_loader import BATCH_TOKENS

HUB = {"path": "Rowan/hellaswag", "split": "validation"}
BLOCK = 256  # examples between two writings of the record


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders of runs, or checkpoints"""
    source: str | None = None
    """.jsonl or .parquet file of examples (activity_label, ctx_a, ctx_b, endings, label); null: the hub's validation split"""
    max_examples: int | None = None
    """look at the first so many examples only"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """how attention is computed (attention.py)"""

    def __post_init__(self):
        if not self.runs:
            raise InputError("no run named: python eval_hellaswag.py runs/NAME ...")
        if problems := cli.check_minimums(self, max_examples=1):
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("runs", "folders of runs, or checkpoints")
    )
    device, dtype = devices.select_device(config.device, config.dtype)
    for run in config.runs:
        load_checkpoint(run, causal=True, weights=False)  # is there, or nothing need be fetched
    examples = load_examples(config.source)
    records = tables.in_order(
        [evaluate(run, examples, config, device, dtype) for run in config.runs]
    )
    print()
    print(tables.aligned(tables.accuracy(records)))
    print(
        f"HellaSwag ({records[0]['data']['split']}), percent right ± standard error, as lm-evaluation-harness counts; "
        f"{records[0]['data']['tokenizer']} tokens, no <|endoftext|> before the context; chance is 25."
    )


def load_examples(source: str | None) -> list[dict]:
    """[{"context", "endings", "label"}], texts as the harness has them. Raises InputError for examples that are none."""
    import datasets

    datasets.disable_progress_bars()
    if source is not None and not (
        Path(source).is_file() and text_sources.table_format(Path(source))
    ):
        raise InputError(
            f"--source {source} is no .jsonl or .parquet file: name one, or leave it out for the hub's"
        )
    name, load = (
        (source, text_sources.load_arguments([Path(source)]) | {"streaming": True})
        if source
        else (HUB["path"], HUB)
    )
    with text_sources.input_errors(name, "repair it, or use another --source"):
        rows = list(datasets.load_dataset(**load))
    examples = []
    for number, row in enumerate(rows, 1):
        texts, endings, label = (
            [row.get(key) for key in ("activity_label", "ctx_a", "ctx_b")],
            row.get("endings"),
            str(row.get("label")),
        )
        if not (
            isinstance(endings, list)
            and all(isinstance(text, str) for text in texts + endings)
            and label.isdecimal()
            and int(label) < len(endings)
        ):
            raise InputError(
                f"{name}: example {number} is none of HellaSwag's: give activity_label, ctx_a, ctx_b, endings, and as label "
                "the number of the right one, from 0 on (the split test has no labels)"
            )
        activity, a, b = texts
        examples.append(
            {
                "context": preprocess(f"{activity}: {a} {b.capitalize()}"),
                "endings": [preprocess(ending) for ending in endings],
                "label": int(label),
            }
        )
    if not examples:
        raise InputError(f"{name} holds no examples: name another --source")
    return examples


def preprocess(text: str) -> str:
    """The harness's: brackets are what WikiHow's pages left behind."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def evaluate(
    run: str, examples: list[dict], config: Config, device: torch.device, dtype: torch.dtype
) -> dict:
    """The record of one checkpoint, over the examples asked for."""
    model, checkpoint = load_model(run, device, dtype, config.attention)
    encoding = tokenization.tiktoken_encoding(checkpoint["data"]["tokenizer"])
    count = min(len(examples), config.max_examples or len(examples))
    pairs = [
        [encode_pair(encoding, example["context"], " " + ending) for ending in example["endings"]]
        for example in examples[:count]
    ]
    longest = max(len(ending) for _, ending in itertools.chain(*pairs))
    if longest > (model.max_context or longest):
        raise InputError(
            f"{run}: an ending of {longest} tokens is longer than the {model.max_context} that {checkpoint['gpt']['pe']} "
            "takes at most: leave this run out"
        )

    split = Path(config.source).name.partition(".")[0] if config.source else HUB["split"]
    path = record_path(run, "eval", "hellaswag", split)
    identity = {
        **record_identity(run, model, checkpoint, dtype),
        "data": {
            "dataset": "hellaswag",
            "split": split,
            "tokenizer": encoding.name,
            "sha256": hashlib.sha256(json.dumps(examples).encode()).hexdigest(),
        },
        "protocol": {"name": "lm-evaluation-harness", "prompt_examples": 0},
    }
    scores = (existing_record(path, identity) or {"log_likelihoods": []})["log_likelihoods"]
    if len(scores) >= count:
        print(f"{run} is already evaluated")

    def record():
        done = len(scores[:count])
        cut = sum(
            len(context) + len(ending) - 1 > (model.max_context or math.inf)
            for context, ending in itertools.chain(*pairs[:done])
        )
        return {
            **run_labels(run),
            **identity,
            "examples": done,
            **accuracies(scores[:done], examples),
            "truncated_sequences": cut,
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
            found = iter(
                log_likelihoods(
                    model, list(itertools.chain(*block)), encoding.n_vocab, device, dtype
                )
            )
            scores += [list(itertools.islice(found, len(endings))) for endings in block]
            bar.update(len(block))
            write_json(
                path, {**record(), "log_likelihoods": scores, "provenance": provenance(device)}
            )
    print(f"record: {path}")
    return record()


def encode_pair(encoding, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of both, split where the harness splits: spaces at the context's end belong to what follows, and the continuation is
    what the tokens of both together have beyond the number of the context's.
    """
    bare = context.rstrip()
    tokens = encoding.encode_ordinary(bare)
    return tokens, encoding.encode_ordinary(context + continuation)[len(tokens) :]


@torch.no_grad()
def log_likelihoods(
    model: GPT, pairs: list[tuple[list[int], list[int]]], vocab_size: int, device, dtype
) -> list[float]:
    """log p(continuation | context) in nats of each pair, summed over the continuation's tokens.

    Sequences of similar length share a batch, padded on the right, which no earlier token sees. Of those longer than the encoding's
    longest context the last tokens stay. The padding of the vocabulary is no token.
    """
    keep = 1 + (model.max_context or max(len(context) + len(ending) for context, ending in pairs))
    sequences = [((context + ending)[-keep:], len(ending)) for context, ending in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -len(sequences[i][0]))
    sums = [0.0] * len(pairs)
    while order:
        longest = (
            len(sequences[order[0]][0]) - 1
        )  # inputs of a row: its last token is predicted only
        rows = [order.pop(0) for _ in range(min(len(order), max(1, BATCH_TOKENS // longest)))]
        inputs = torch.zeros(len(rows), longest, dtype=torch.int64)
        asked = torch.zeros(
            len(rows), longest, dtype=torch.bool
        )  # where a token of the ending is predicted
        for row, (tokens, count) in enumerate(sequences[i] for i in rows):
            inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
            asked[row, len(tokens) - 1 - count : len(tokens) - 1] = True
        targets = torch.tensor(
            [token for i in rows for token in sequences[i][0][-sequences[i][1] :]]
        )
        with devices.autocast(device, dtype):
            hidden = model.hidden(inputs.to(device))[asked.to(device)]  # (tokens of all endings, C)
            losses = cross_entropies(hidden, model.wte.weight[:vocab_size], targets.to(device))
        for i, part in zip(rows, losses.double().cpu().split([sequences[i][1] for i in rows])):
            sums[i] = -part.sum().item()
    return sums


def accuracies(scores: list[list[float]], examples: list[dict]) -> dict:
    """Shares of examples whose best ending is the right one; standard errors over examples, None for a single one."""
    result = {}
    for metric in ("acc", "acc_norm"):
        right = []
        for logs, example in zip(scores, examples):
            lengths = [
                max(len(ending), 1e-9) if metric == "acc_norm" else 1
                for ending in example["endings"]
            ]  # nothing is never best
            right.append(np.argmax(np.divide(logs, lengths)) == example["label"])
        result[metric] = float(np.mean(right))
        result[f"{metric}_se"] = (
            float(np.std(right, ddof=1) / math.sqrt(len(right))) if len(right) > 1 else None
        )
    return result


if __name__ == "__main__":
    cli.run(main)
