"""Labels of columns that differ in a setting, as in a sweep."""

import record_examples

from reporting.columns import differing_settings, make_columns


def record(seed: int, **settings) -> dict:
    example = record_examples.perplexity()
    return example | {"seed": seed, "run": f"run{seed}", "settings": {"lr": 1e-3} | settings}


def test_seeds_of_a_setting_are_one_column():
    records = [record(seed, lr=lr) for lr in (2e-3, 4e-3) for seed in (1, 2)]
    columns = make_columns(records, "perplexity", may_differ=("lr",))
    assert [column.label for column in columns] == ["cable, lr 0.002", "cable, lr 0.004"]
    assert [len(column.records) for column in columns] == [2, 2]


def test_a_setting_of_one_run_only_names_that_run():
    records = [record(1), record(2), record(1, block="llama")]
    labels = [column.label for column in make_columns(records, "perplexity")]
    assert labels == ["cable", "cable, block llama"]


def test_equal_settings_and_seeds_are_told_apart_by_run():
    records = [record(1), record(1) | {"run": "other"}]
    assert [column.label for column in make_columns(records, "perplexity")] == ["other", "run1"]


def test_settings_of_runs_without_steps_do_not_count():
    """As of imported weights, and of the same weights under another encoding."""
    records = [record(1, lr=1e-3), record(1, block="llama")]
    assert differing_settings(records) == ["block"]
    assert differing_settings([each | {"step": 0} for each in records]) == []
