"""Problems between several fields of a record, in committed records with one change each."""

import copy
import json
from pathlib import Path

import pytest

from evaluation import record_schema

RUN = {"run": "a", "pe": "cable", "size": None, "objective": None, "seed": 1}
LOSSES = {"training": "pretraining", "runs": [RUN | {"losses": [[1, 3.0], [2, 2.0]]}]}
RESULTS = Path(__file__).parent.parent.parent / "results"
PERPLEXITY = record_schema.PERPLEXITY, "quickstart/rope.json"
FIELD = record_schema.RECEPTIVE_FIELD, "sandwich/encodings/rope_receptive.json"
NDCG = record_schema.NDCG, "encoders/retrieval/cable.json"
SPEED = record_schema.SPEED, "bench/figure3_tiny/train.json"


def first_length(record):
    return next(iter(record["lengths"].values()))


def targets_without_spans(record):
    record["protocol"] = {"name": "same-targets", "targets": 64, "overlap": 0.5}


def infinite_perplexity(record):
    first_length(record)["perplexity"] = float("inf")


def fewer_block_tokens(record):
    entry = first_length(record)
    entry["block_tokens"] = [1024] * (len(entry["blocks"]) - 1)


def positions_beyond_the_length(record):
    first_length(record)["by_position"] = {"first": 0, "width": 10**6, "loss": [1.0, 1.0]}


def fewer_shares(record):
    first_length(record)["cumulative"]["share"].pop()


def fewer_questions(record):
    first_length(record)["by_question"].pop()


def unordered_losses(record):
    record["runs"][0]["losses"].reverse()


def no_numbers(record):
    record["train"]["contexts"] = {"128": {"rope": None}}


def not_compared_with_rope(record):
    record["train"]["contexts"]["128"]["cable"]["ratios"].pop("rope")


def fewer_rounds(record):
    record["train"]["contexts"]["128"]["cable"]["seconds"].pop()


@pytest.mark.parametrize(
    "kind, change, problem",
    [
        (PERPLEXITY, targets_without_spans, "protocol has targets, but no spans and overlap"),
        (PERPLEXITY, infinite_perplexity, "has an infinite perplexity, but a loss of"),
        (PERPLEXITY, fewer_block_tokens, "has different numbers of blocks and block_tokens"),
        (PERPLEXITY, positions_beyond_the_length, "has losses by_position beyond its length"),
        (FIELD, fewer_shares, "cumulative has different numbers of tokens and shares"),
        (NDCG, fewer_questions, "values, not one per question"),
        ((record_schema.LOSSES, LOSSES), unordered_losses, "are not in the order of their steps"),
        (SPEED, no_numbers, "field train.contexts has no numbers"),
        (SPEED, not_compared_with_rope, "has an entry that is not compared with rope"),
        (SPEED, fewer_rounds, "field train.contexts has different numbers of rounds"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_problem_between_fields_is_found(kind, change, problem):
    schema, record = kind
    if isinstance(record, str):
        record = json.loads((RESULTS / record).read_text())
    assert schema.find_problem(record) is None
    changed = copy.deepcopy(record)
    change(changed)
    assert problem in schema.find_problem(changed)
