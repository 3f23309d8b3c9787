"""Columns, tables and captions of records with known numbers."""

from test_report import record

from reporting.columns import (
    describe_differences,
    differing_settings,
    group_by_protocol,
    make_columns,
    sort_key,
)
from reporting.metrics import PERPLEXITY


def columns_of(records):
    return make_columns(records, PERPLEXITY.key)


def table_of(records):
    return PERPLEXITY.table(columns_of(records))


def test_runs_with_another_recipe_are_not_seeds_of_one_column():
    """Steps, settings, text or plugins differ: one column per run, labeled by setting or run."""
    first = record("cable", {256: 4.0}, run="a", seed=1)
    second = record("cable", {256: 4.2}, run="b", seed=2)
    for name, value in (
        ("step", 9),
        ("parameters", 3),
        ("settings", {"lr": 1e-3}),
        ("training_text", "other"),
        ("plugin", {"a.py": "1"}),
    ):
        columns = columns_of([first, {**second, name: value}])
        labels = ["cable, run a", "cable, run b"]
        if name == "settings":
            labels = ["cable", "cable, lr 0.001"]
        assert [column.label for column in columns] == labels
        assert all(len(column.records) == 1 for column in columns)


def test_only_what_an_imported_model_has_is_compared():
    imported = record("rope", {256: 4.0}) | {"settings": {"model": ["x"], "attn_scale": None}}
    trained = record("cable", {256: 4.2}) | {"settings": {"lr": 1e-3, "attn_scale": None}}
    assert differing_settings([imported, trained]) == []
    trained["settings"]["attn_scale"] = 1
    assert differing_settings([imported, trained]) == ["attn_scale"]


def test_encodings_are_sorted_by_paper_order_then_name_then_number():
    shifts = [f"alibi-shift:shift={shift}" for shift in (-5, -2)]
    expected = ["rope", *shifts, "k-cable", "window:w=30", "window:w=120", "yarn"]
    assert sorted(reversed(expected), key=sort_key) == expected
    assert sorted(sorted(expected), key=sort_key) == expected


def test_a_table_has_one_data_set_and_one_protocol():
    records = [record(pe, {256: 4.0}) for pe in ("cable", "rope", "alibi", "fox")]
    records[1]["data"] = {**records[1]["data"], "sha256": "2"}
    records[2]["protocol"] = {**records[2]["protocol"], "stride": 64}
    groups = [[entry["pe"] for entry in group] for group in group_by_protocol(records)]
    assert groups == [["cable", "fox"], ["alibi"], ["rope"]]


def test_more_lengths_of_some_runs_do_not_split_a_table():
    """Windows of another longest length have other tokens: not compared, as the caption says."""
    cable, rope = record("cable", {256: 4.0}, seed=1), record("rope", {256: 5.0}, seed=1)
    longer = record("rope", {256: 5.5, 8192: 9.0}, seed=1)
    longer["protocol"] = longer["protocol"] | {"span": 8192, "remainder": "counted"}
    cached = rope | {"cache_window": 256, "lengths": {"4096": rope["lengths"]["256"]}}
    (group,) = group_by_protocol([cable, rope, longer, cached])
    first, second, third = columns_of(group)
    assert [second.label, third.label] == ["rope", "rope, last 256 tokens"]
    assert (second.lengths(), second.values(256), second.values(8192)) == (
        [256, 8192],
        [5.0],
        [9.0],
    )
    assert table_of(group).cells[1:] == [
        ["256", "4.00", "5.00", "—"],
        ["4,096", "—", "—", "5.00"],
        ["8,192", "—", "9.00", "—"],
    ]
    assert first.differing(second) == []
    columns = columns_of([cable, longer])
    assert columns[0].differing(columns[1]) == ["text"]
    note = describe_differences(columns, ("text",))
    assert note == (
        "",
        " Settings that differ: text: span 4096 (cable), span 8192 remainder counted (rope).",
    )


def test_steps_of_the_weights_that_a_run_continues_from_count():
    """Runs of --steps 0 are of equal length if their weights are."""
    runs = [record(pe, {}) | {"step": 0, "init_steps": 40} for pe in ("nope", "yarn:factor=4")]
    assert differing_settings(runs) == []
    assert differing_settings([runs[0], runs[1] | {"init_steps": 200}]) == ["step"]
    trained = record("rope", {}) | {"step": 40}
    assert differing_settings([runs[0], trained]) == []
    assert differing_settings([runs[0], trained | {"step": 41}]) == ["step"]


def test_seeds_become_one_column_with_standard_deviation():
    """4.0 and 4.2: mean 4.1, sample standard deviation 0.1414. One seed alone at 512: no number."""
    records = [
        record("cable", {256: 4.0, 512: 3.0}, run="a", seed=1),
        record("cable", {256: 4.2}, run="b", seed=2),
        record("rope", {256: 5.0, 512: 6.0}, seed=1),
    ]
    table = table_of(records)
    assert [line.split("|")[1:-1] for line in table.markdown().splitlines()[2:]] == [
        ["     256 ", " **4.10 ± 0.14** ", " 5.00 "],
        ["     512 ", "               — ", " 6.00 "],
    ]
    assert table.caption.endswith(" Mean ± standard deviation over seeds.")
    assert "seed" not in table_of(records[1:]).caption
    assert table.csv() == "context,cable,cable std,rope\n256,4.1,0.141421,5\n512,,,6\n"
    equal = [record("cable", {256: 4.0}, run=f"{seed}", seed=seed) for seed in (1, 2)]
    assert table_of(equal).csv() == "context,cable,cable std\n256,4,0\n"


def test_labels_name_what_differs():
    """Runs of one seed by name, of one name by folder; settings, sizes, lengths and caches."""
    named = [record("cable", {256: 4.0}, run=run) for run in ("lr1", "lr2")]
    named.append(record("rope", {256: 5.0}))
    assert table_of(named).cells[0] == ["context", "cable, run lr1", "cable, run lr2", "rope"]
    folders = [record("cable", {256: 4.0}, seed=1) | {"folder": f"lr{n}"} for n in (1, 2)]
    assert [column.label for column in columns_of(folders)] == [
        "cable, run lr1/cable",
        "cable, run lr2/cable",
    ]
    other = [
        record("cable", {256: 4.0}, block_size=512),
        record("cable", {256: 4.1}),
        record("rope", {256: 4.0}),
        record("rope", {256: 4.0}) | {"cache_window": 2048},
        record("alibi", {256: 4.0}) | {"size": "tiny"},
        record("alibi", {256: 4.0}) | {"size": "small"},
    ]
    labels = "cable, trained at 512; cable, trained at 256; alibi, tiny; alibi, small; rope; "
    labels += "rope, last 2,048 tokens"
    assert [column.label for column in columns_of(other)] == labels.split("; ")


def test_settings_are_in_the_labels_of_a_sweep():
    """Seeds of a setting are one column; a setting of one run only names that run."""
    sweep = [
        record("cable", {256: 4.0}, run=f"{lr}-{seed}", seed=seed) | {"settings": {"lr": lr}}
        for lr in (2e-3, 4e-3)
        for seed in (1, 2)
    ]
    columns = make_columns(sweep, "perplexity", may_differ=("lr",))
    assert [column.label for column in columns] == ["cable, lr 0.002", "cable, lr 0.004"]
    assert [len(column.records) for column in columns] == [2, 2]
    llama = sweep[0] | {"settings": {"lr": 2e-3, "block": "llama"}}
    labels = [column.label for column in columns_of([*sweep[:2], llama])]
    assert labels == ["cable", "cable, block llama"]
    assert differing_settings([sweep[0], llama]) == ["block"]
    # Without steps: imported weights, and the same weights under another encoding.
    assert differing_settings([each | {"step": 0} for each in (sweep[0], llama)]) == []


def test_wide_tables_have_a_row_for_each_encoding():
    """Seeds of e1 differ by 0.2, at 512 by 0.4."""
    lengths = [128, 256, 512]
    records = [record(f"e{n}", dict.fromkeys(lengths, 4.0), seed=1) for n in range(8)]
    records += [record("e8", dict.fromkeys(lengths, 3.0))]
    records += [record("e1", dict.fromkeys(lengths, 4.2) | {512: 4.4}, seed=2)]
    table = table_of(records)
    assert table.cells[0] == ["context", "128", "256", "512"]
    assert table.cells[2] == ["e1", "4.10 ± 0.14", "4.10 ± 0.14", "4.20 ± 0.28"]
    assert table.cells[9] == ["e8", "3.00", "3.00", "3.00"]
    assert "**3.00**" in table.markdown()
    assert [row[0] for row in table.plain] == ["context", *lengths]
    assert "e1 std" in table.plain[0]


def test_nested_settings_differ_by_value_and_changes_are_named_in_words():
    """Records of another version have the keys of a dictionary in another order."""
    nested = [{"encoder": {"lr": 1, "steps": 2}}, {"encoder": {"steps": 2, "lr": 1}}]
    records = [record("cable", {256: 4.0}, seed=1) | {"settings": each} for each in nested]
    assert differing_settings(records) == []
    changes = [{"step": 30, "settings": {"steps": [30, 40]}}]
    resumed = record("rope", {256: 4.0}) | {"settings": {"changes": changes}}
    warning, _ = describe_differences(columns_of([records[0], resumed]), ())
    assert "steps 30 to 40 at step 30 (" in warning
