"""Every wrong field of a record is found."""

import copy
import functools
import json
import math
import operator

from runtime.validation import find_mismatch

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
    *("train", "attention", "generate", "eval"),
}
MAPS = {"lengths", "contexts", "512", "2048", "ratios", "others", "skipped"}  # keys are no fields
WRONG = {dict: [[1]], list: [{"a": 1}], str: [3, "x\n"], bool: [1], type(None): [{"a": [1]}]}
WRONG |= dict.fromkeys((int, float), ["3", True, math.nan])
OUT_OF_RANGE = """
perplexity lengths {}
perplexity lengths {"007": null}
perplexity block_size 0
perplexity settings {"a\\n":1}
perplexity seed -1
perplexity step -1
perplexity init_steps -1
perplexity parameters -1
perplexity cache_window 0
perplexity data.dataset ".."
perplexity data.split "a/b"
perplexity protocol.stride 0
perplexity protocol.targets 0
perplexity protocol.span 0
perplexity protocol.spans 0
perplexity protocol.documents 0
perplexity protocol.overlap 1.1
perplexity protocol.mask_rate -0.1
perplexity lengths.256.loss 1e19
perplexity lengths.256.loss_se -0.1
perplexity lengths.256.perplexity 0.9
perplexity lengths.256.tokens 0
perplexity lengths.256.block_tokens.-1 0
perplexity lengths.256.by_position.first -1
perplexity lengths.256.by_position.width 0
perplexity lengths.256.by_offset {"first":0,"width":0,"loss":[]}
receptive_field protocol.windows 0
receptive_field protocol.span 0
receptive_field protocol.held 1.1
receptive_field lengths.256.receptive_field 0
receptive_field lengths.256.receptive_field 1e19
receptive_field lengths.256.receptive_field_se -1
receptive_field lengths.256.cumulative.tokens.-1 0
receptive_field lengths.256.cumulative.share.-1 1.1
recall protocol.passage 0
recall protocol.trials 0
recall protocol.span 0
recall lengths.64.recall -1e19
recall lengths.64.recall 1e19
recall lengths.64.recall_se -1
recall lengths.64.recall_se 1e19
trained_recall protocol.trials 0
trained_recall protocol.span 0
trained_recall protocol.symbols 0
trained_recall steps_to_95 -1
trained_recall lengths.64.accuracy_se -1
retrieval data.documents -1
retrieval data.questions -1
retrieval lengths.128.ndcg10 -1
retrieval lengths.128.ndcg10_se -1
retrieval lengths.128.by_question.-1 -1
accuracy acc 1.1
accuracy acc_norm -0.1
accuracy acc_se 1.1
accuracy acc_norm_se 1.1
accuracy examples -1
accuracy log_likelihoods.-1.-1 1e19
speed train.micro_batch 0
speed train.repeats 0
speed train.contexts {"0":{}}
speed train.contexts.512 {"a\\n":null}
speed train.contexts.512.cable.seconds []
speed train.contexts.512.cable.seconds.-1 0
speed train.contexts.512.cable.others.rope []
speed train.contexts.512.cable.tokens 0
speed train.contexts.512.cable.tokens_per_second 0
speed train.contexts.512.cable.memory 0
speed train.contexts.512.cable.weights 0
speed train.contexts.512.cable.ratios.rope 0
speed train.contexts.512.cable.ratios {"a\\n":1}
speed train.contexts.512.cable.others {"a\\n":[1]}
speed train.contexts.512.cable.time {"a\\n":1}
speed train.contexts.512.cable.mfu -1
speed train.contexts.512.cable.error -1
speed train.contexts.512.cable.time {"waiting":1.1}
compare compare.context 0
compare compare.rows.-1.tokens 0
compare compare.rows.-1.flops 0
compare compare.rows.-1.product_flops 0
compare compare.rows.-1.seconds.ours []
"""


def find_problem(record):
    schema = record_schema.schema_of(record)
    return find_mismatch(record, schema) if schema else "no schema"


def changed(record, path, *value):
    """Return a copy of a record with another value, or none, at a path."""
    record = copy.deepcopy(record)
    inner = functools.reduce(operator.getitem, path[:-1], record)
    if value:
        (inner[path[-1]],) = value
    else:
        del inner[path[-1]]
    return record


@pytest.mark.parametrize("make", record_examples.KINDS)
def test_every_wrong_or_missing_field_is_found(make):
    record = make()
    assert find_problem(record) is None
    read = [path for path in record_examples.places(record) if path[-1] not in UNREAD]
    for path in read:
        for wrong in WRONG[type(functools.reduce(operator.getitem, path, record))]:
            assert find_problem(changed(record, path, wrong)), (path, wrong)
    named = [path for path in read if not str(path[-1]).isdecimal()]
    fields = [path for path in named if len(path) == 1 or MAPS.isdisjoint(path[-2:-1])]
    for path in [path for path in fields if path[-1] not in OPTIONAL]:
        assert find_problem(changed(record, path)), path


@pytest.mark.parametrize("row", OUT_OF_RANGE.split("\n")[1:-1])
def test_values_out_of_range_are_found(row):
    """A row: the record's kind, the path of a field, and a value; -1: the last of a list."""
    kind, names, value = row.split(maxsplit=2)
    path = [int(name) if name == "-1" else name for name in names.split(".")]
    problem = find_problem(changed(getattr(record_examples, kind)(), path, json.loads(value)))
    assert problem.startswith(("expected ", "invalid enum value"))


@pytest.mark.parametrize("metric, value", [("a\n", 1.0), ("Surprise", 1e19)])
def test_wrong_records_of_an_unlisted_metric_are_found(metric, value):
    record = record_examples.recall() | {"metric": metric, "lengths": {"64": {"value": value}}}
    assert find_problem(record).startswith("expected ")


@pytest.mark.parametrize("seed, data", [(-1, None), (1, "a\n")])
def test_wrong_records_of_fine_tuning_are_found(seed, data):
    record = {"settings": {"seed": seed}, "sha256": {"data": data}}
    assert find_mismatch(record, record_schema.FineTuning).startswith("expected ")


def test_missing_fields_have_defaults_and_unknown_ones_are_ignored():
    """As in records of earlier and later versions."""
    record = changed(record_examples.perplexity(), ("unknown",), math.nan)
    assert find_problem(changed(record, ("protocol", "stride"))) is None


def test_committed_records_fulfil_the_schema():
    paths = (ROOT / "results").rglob("*.json*")
    values = [
        value for path in paths for value in record_schema.read_json_values(path, "").values()
    ]
    records = [value for value in values if record_schema.schema_of(value)]
    assert records
    assert [problem for record in records if (problem := find_problem(record))] == []
