"""Every wrong field of a record is found."""

import copy

from runtime.schema import find_mismatch

import pytest
import record_examples
from conftest import ROOT

from evaluation import record_schema

UNREAD = {"checkpoint_sha256", "attention", "sha256", "lr"}  # no program reads them
OPTIONAL = {
    *("folder", "objective", "step", "seed", "parameters", "cache_window", "dtype"),
    *("stride", "targets", "remainder", "span", "spans", "overlap", "mask_rate"),
    *("blocks", "block_tokens", "by_position", "by_question", "log_likelihoods"),
    *("others", "encoding", "flops", "product_flops", "product"),
}
MAPS = {"lengths", "contexts", "512", "2048", "ratios", "others", "skipped"}  # keys are no fields
WRONG = {dict: [1], list: {"a": 1}, str: 3, int: "3", float: "3", bool: 1, type(None): {"a": [1]}}


def find_problem(record):
    schema = record_schema.schema_of(record)
    return find_mismatch(record, schema) if schema else "no schema"


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
    optional = OPTIONAL | {*record_schema.SPEED_RESULTS}
    for path in [path for path in fields if path[-1] not in optional]:
        assert find_problem(changed(record, path, dict.pop)), path


@pytest.mark.parametrize("field", ["dataset", "split"])
def test_names_of_data_are_parts_of_file_names(field):
    record = record_examples.perplexity()
    record["data"][field] = "../x"
    assert find_problem(record) == f'expected a name without "/" and "\\" at data.{field}'


@pytest.mark.parametrize(
    "kind, path",
    [
        ("perplexity", ("lengths", "256", "block_tokens")),
        ("receptive_field", ("lengths", "256", "cumulative", "share")),
        ("compare", ("compare", "rows", 0, "seconds", "theirs")),
    ],
)
def test_lists_of_different_lengths_are_found(kind, path):
    record = getattr(record_examples, kind)()
    record = changed(record, path, lambda inner, key: inner[key].pop())
    assert "have different numbers of values at " in find_problem(record)


def test_losses_that_are_not_in_the_order_of_their_steps_are_found():
    record = record_examples.losses()
    record["runs"][0]["losses"].reverse()
    assert "the losses of cable are not in the order of their steps" in find_problem(record)


def test_committed_records_fulfil_the_schema():
    paths = (ROOT / "results").rglob("*.json*")
    values = [
        value for path in paths for value in record_schema.read_json_values(path, "").values()
    ]
    records = [value for value in values if record_schema.schema_of(value)]
    assert len(records) > 300
    assert [problem for record in records if (problem := find_problem(record))] == []
