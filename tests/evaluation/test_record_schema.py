"""Every wrong field of a record is found, and so are contradictions between its fields."""

import copy

from runtime.files import read_json_values

import pytest
import record_examples
from conftest import ROOT

from evaluation import record_schema

UNREAD = {"checkpoint_sha256", "attention", "sha256", "lr"}  # no program reads them
OPTIONAL = {
    *("folder", "objective", "step", "seed", "parameters", "cache_window", "dtype"),
    *("stride", "targets", "remainder", "span", "spans", "overlap", "mask_rate"),
    *("blocks", "block_tokens", "by_position", "by_question", "log_likelihoods"),
    *("others", "encoding", "flops"),
}
MAPS = {"lengths", "contexts", "512", "2048", "ratios", "others", "skipped"}  # keys are no fields
WRONG = {dict: [1], list: {"a": 1}, str: 3, int: "3", float: "3", bool: 1, type(None): {"a": [1]}}


def find_problem(record):
    schema = record_schema.schema_of(record)
    return schema.find_problem(record) if schema else "no schema"


def changed(record, path, change):
    """Return a copy of a record; change(object, key) changes the value at a path."""
    record = inner = copy.deepcopy(record)
    for part in path[:-1]:
        inner = inner[part]
    change(inner, path[-1])
    return record


def set_wrong(inner, key):
    inner[key] = WRONG[type(inner[key])]


@pytest.mark.parametrize("make", record_examples.KINDS)
def test_every_wrong_or_missing_field_is_found(make):
    record = make()
    assert find_problem(record) is None
    read = [path for path in record_examples.places(record) if path[-1] not in UNREAD]
    for path in read:
        assert find_problem(changed(record, path, set_wrong)), path
    named = [path for path in read if not str(path[-1]).isdecimal()]
    fields = [path for path in named if len(path) == 1 or MAPS.isdisjoint(path[-2:-1])]
    required = [
        path for path in fields if path[-1] not in OPTIONAL | {*record_schema.SPEED_RESULTS}
    ]
    for path in required:
        assert find_problem(changed(record, path, dict.pop)), path


@pytest.mark.parametrize("field", ["dataset", "split"])
def test_names_of_data_are_parts_of_file_names(field):
    record = record_examples.perplexity()
    record["data"][field] = "../x"
    assert find_problem(record) == f'expected a name without "/" and "\\" at data.{field}'


def first_length(record):
    return next(iter(record["lengths"].values()))


def targets_without_spans(record):
    record["protocol"] = {"name": "same-targets", "targets": 64, "overlap": 0.5}


def infinite_perplexity(record):
    first_length(record)["perplexity"] = float("inf")


def fewer_block_tokens(record):
    first_length(record)["block_tokens"].pop()


def positions_beyond_the_length(record):
    first_length(record)["by_position"] = {"first": 0, "width": 10**6, "loss": [1.0, 1.0]}


def fewer_shares(record):
    first_length(record)["cumulative"]["share"].pop()


def fewer_questions(record):
    first_length(record)["by_question"].pop()


def no_numbers(record):
    record["train"]["contexts"] = {"128": {"rope": None}}


def not_compared_with_rope(record):
    record["train"]["contexts"]["512"]["cable"]["ratios"] = {"nope": 1.0}


def fewer_rounds(record):
    record["train"]["contexts"]["512"]["cable"]["seconds"].pop()


def fewer_rounds_of_one(record):
    record["compare"]["rows"][0]["seconds"]["theirs"].pop()


def flops_without_product(record):
    del record["compare"]["rows"][0]["seconds"]["product"]


@pytest.mark.parametrize(
    "kind, change, problem",
    [
        ("perplexity", targets_without_spans, "with targets, but no spans and overlap"),
        ("perplexity", infinite_perplexity, "lengths.256 has an infinite perplexity, but a loss"),
        ("perplexity", fewer_block_tokens, "has different numbers of blocks and block_tokens"),
        ("perplexity", positions_beyond_the_length, "has losses by_position beyond its length"),
        ("receptive_field", fewer_shares, "has different numbers of tokens and shares"),
        ("retrieval", fewer_questions, "has 2 values by_question, not one per question"),
        ("speed", no_numbers, "field train.contexts has no numbers"),
        ("speed", not_compared_with_rope, "has an entry that is not compared with rope"),
        ("speed", fewer_rounds, "field train.contexts has different numbers of rounds"),
        ("compare", fewer_rounds_of_one, "nanoGPT has different numbers of rounds"),
        ("compare", flops_without_product, "nanoGPT has flops, but no product"),
    ],
)
def test_contradiction_between_fields_is_found(kind, change, problem):
    record = copy.deepcopy(getattr(record_examples, kind)())
    change(record)
    assert problem in find_problem(record)


def test_committed_records_fulfil_the_schema():
    paths = (ROOT / "results").rglob("*.json*")
    values = [value for path in paths for value in read_json_values(path, "").values()]
    records = [value for value in values if record_schema.schema_of(value)]
    assert len(records) > 300
    assert [problem for record in records if (problem := find_problem(record))] == []
