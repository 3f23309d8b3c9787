"""Our numbers next to those of the papers: values, growth and order, one row on the agreement."""

import pytest
from test_report import SAME_TARGETS, record

from reporting import paper
from reporting.columns import make_columns
from reporting.paper_tables import (
    Agreement,
    Cell,
    length_cells,
    receptive_field_cells,
    speed_cells,
    training_length_cells,
)

TABLE_1 = "cable_table1_wikitext-103_tiny"
WIKITEXT = {"dataset": "wikitext103", "split": "val", "tokenizer": "gpt2"}
SETTINGS = {"steps": 9000, "tokens_per_step": 131072, "lr": 6e-4}  # of configs/wikitext103_tiny


def ours(pe, perplexities, settings=(), block_size=1024, **fields):
    """Return a record in the setting of table 1 on WikiText-103, but for changes."""
    made = record(pe, perplexities, block_size=block_size, seed=fields.pop("seed", 1))
    fields = {"size": "tiny", "data": WIKITEXT, "step": 9000} | fields
    return made | {"settings": SETTINGS | dict(settings)} | fields


def compared(records, name):
    printed, columns = paper.load(name), make_columns(records, "perplexity")
    agreement = Agreement(printed, [*length_cells(columns, printed, {})])
    return agreement.table(), agreement


# Two seeds of t5-clip. The paper: cable 23.70, 22.32; t5 23.60.
RECORDS = [
    ours("cable", {512: 14.0, 1024: 22.0}),
    ours("t5-clip", {1024: 25.1}),
    ours("t5-clip", {1024: 25.9}, seed=2),
]


def test_in_the_paper_s_setting_cells_have_relative_differences():
    """25.5 / 23.60 is 8.1% more, 22 / 22.32 1.4% less."""
    table, agreement = compared(RECORDS, TABLE_1)
    assert [row[:4] for row in table.cells] == [
        ["encoding", "512", "1,024", "2,048"],
        ["cable", "14.00 (23.70, -40.9%)", "22.00 (22.32, -1.4%)", "— (21.48)"],
        ["t5-clip", "— (25.06)", "25.50 ± 0.57 (23.60, +8.1%)", "— (27.64)"],
    ]
    assert [*agreement.row().values()] == [TABLE_1, "50", "3", "yes", "1", "-40.9%"]


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"settings": {"steps": 512}, "step": 512}, "steps"),
        ({"step": 100}, "steps"),  # a training that did not end
        ({"settings": {"tokens_per_step": 8192}}, "tokens_per_step"),
        ({"settings": {"lr": 1e-3}}, "lr"),
        ({"settings": {"tied": False}}, "tied"),
        ({"settings": {"block": "llama"}}, "block"),
        ({"size": "small"}, "size"),
        ({"block_size": 512}, "block_size"),
        ({"data": WIKITEXT | {"dataset": "english"}}, "dataset"),
        ({"data": WIKITEXT | {"tokenizer": "bytes"}}, "tokenizer"),
    ],
)
def test_off_the_paper_s_setting_there_are_no_percentages(changes, name):
    """One of the runs differs in one setting."""
    table, agreement = compared(
        [*RECORDS[1:], ours("cable", {512: 33.0, 1024: 22.0}, **changes)], TABLE_1
    )
    assert agreement.differing() == [name]
    assert [*agreement.row().values()][3:] == [f"no: {name}"]
    assert "%" not in (table.text() if table else "")


def test_growth_and_order_next_to_the_paper_s():
    """At 15 times: the paper has cable 20.29, alibi 20.96, rope 345.33 of 22.32, 22.25, 20.47."""
    lengths = {  # alibi grows from 4 to 5, and is above rope
        "cable": {256: 4.0, 3840: 3.0},
        "alibi": {256: 4.0, 3840: 5.0},
        "rope": {256: 4.0, 3840: 4.5},
        "learnable": {256: 4.0},
        "zebra": {256: 1.0, 3840: 1.0},
    }
    records = [ours(pe, values, block_size=256) for pe, values in lengths.items()]
    cached = ours("rope", {256: 4.0, 3840: 4.0}, block_size=256, cache_window=256)
    table, agreement = compared([*records, cached], TABLE_1)
    printed = paper.load(TABLE_1)
    growth = {
        pe: printed.numbers[pe, 15360].value / printed.numbers[pe, 1024].value
        for pe in ("cable", "alibi", "rope")
    }
    assert table.cells == [
        ["encoding", "growth", "order"],
        ["cable", f"0.75 ({growth['cable']:.2f})", "1 (1)"],
        ["alibi", f"1.25 ({growth['alibi']:.2f})", "3 (2)"],
        ["rope", f"1.12 ({growth['rope']:.2f})", "2 (3)"],
    ]
    assert "at 15 times a context of 1,024" in table.caption
    assert "2 of 3 pairs of encodings have the paper's order." in table.caption
    assert len(agreement.measured()) == 7


def test_the_highest_ndcg_is_the_best():
    """Of another size than the paper's: cable has 2 of 1 before, alibi 3 of 2."""
    values = {"cable": (1.0, 2.0), "alibi": (2.0, 3.0)}
    cells = [
        Cell(pe, pe, column, paper.Number(value), paper.Number(value), {"size"})
        for pe, pair in values.items()
        for column, value in zip(("512", "1,024"), pair, strict=True)
    ]
    table = Agreement(paper.load("cable_table3_mldr_ndcg10_bert"), cells).table()
    assert [row[2] for row in table.cells[1:]] == ["2 (2)", "1 (1)"]


def test_tables_of_sandwich():
    """Table 2 has two training lengths; the size implies untied embeddings; table 5 has a cache."""
    lengths = {2048: 4.6, 4096: 6.3, 8192: 6.6}
    setting = {"size": "small", "data": WIKITEXT | {"dataset": "arxiv"}, "step": 50000}
    setting |= {"protocol": SAME_TARGETS}
    settings = {"steps": 50000, "tokens_per_step": 16384, "tied": False}
    records = [
        ours("alibi-shift:shift=6", lengths, settings, 2048, **setting),
        ours("window:w=160", lengths, settings, 1024, **setting),
    ]
    table, agreement = compared(records, "sandwich_table2_arxiv")
    assert table.cells[1][:2] == ["alibi-shift:shift=6", "4.60 (4.4, +4.5%)"]
    segments = [each | {"protocol": {"name": "segments"}} for each in records]
    table, agreement = compared(segments, "sandwich_table2_arxiv")
    assert agreement.differing() == ["protocol"]
    assert table.cells[2] == ["window:w=160", "1.43 (1.00)", "1 (1)"]
    assert "at 4 times a context of 2,048" in table.caption
    tied = [each | {"settings": each["settings"] | {"tied": True}} for each in records]
    assert compared(tied, "sandwich_table2_arxiv")[1].differing() == ["tied"]
    full = ours("sandwich", {4096: 5.0, 16384: 5.0}, settings, 512, **setting)
    assert compared([full], "sandwich_table5_arxiv")[0] is None
    table, agreement = compared([full | {"cache_window": 2048}], "sandwich_table5_arxiv")
    assert agreement.differing() == [] and len(agreement.measured()) == 2


def test_receptive_fields_of_sandwich_are_next_to_ours():
    """At 128 tokens and 4 layers, window:w=90 is its window of 120, whose printed field is 768."""
    records = []
    for pe, field in {"window:w=90": 200, "alibi-shift:shift=-5": 64, "window:w=60": 100}.items():
        made = ours(pe, {}, block_size=128, size="quickstart")
        made |= {"metric": "Receptive field", "lengths": {"512": {"receptive_field": field}}}
        records.append(made)
    columns = make_columns(records, "receptive_field")
    printed = paper.load(paper.RECEPTIVE_FIELD_TABLE)
    agreement = Agreement(printed, [*receptive_field_cells(columns, printed)])
    assert agreement.table().cells[1:] == [
        ["alibi-shift:shift=-5", "0.50 (alibi-shift:shift=-3: 1.50)"],
        ["window:w=60", "0.78 (window:w=80: <1.00)"],
        ["window:w=90", "1.56 (window:w=120: 1.50)"],
    ]
    assert agreement.row()["measured"] == "3" and "block_size" in agreement.differing()
    assert [cell.deviation() for cell in agreement.cells][1] == 0  # below 1, as printed


def entry(seconds, tokens, memory):
    """Return an entry of bench.py with four equal rounds."""
    values = {
        "tokens": tokens,
        "memory": memory,
        "mfu": None,
        "tokens_per_second": tokens / seconds,
    }
    return {
        "seconds": [seconds] * 4,
        "others": {"rope": [1.0] * 4},
        "ratios": {"rope": 1},
        **values,
    }


def training_lengths(scale=1, size="medium", dataset="fineweb-edu-bytes"):
    """Return the table of the abstract's two runs, at the paper's lengths over scale."""
    columns = []
    for pe, trained_at, perplexity in (("cable-v1", 512, 16.10), ("sinusoidal", 1024, 16.75)):
        made = record(pe, {1024 // scale: perplexity}, block_size=trained_at // scale) | {
            "size": size
        }
        made["data"] = made["data"] | {"dataset": dataset}
        columns += make_columns([made], "perplexity")
    cases = {"cable-v1": entry(0.5 * 1.035, 512, 519_999_999), "sinusoidal": entry(1, 1024, 1e9)}
    contexts = {"512": cases, "1024": cases}
    settings = {"model": "medium", "micro_batch": 4, "dtype": "bfloat16", "repeats": 4}
    speeds = [settings | {"device": "cuda:0 (H100)", "contexts": contexts}]
    printed = paper.load("cable_v1_training-lengths")
    return Agreement(printed, [*training_length_cells(columns, speeds, printed)])


def test_the_headline_is_next_to_the_paper_s():
    """Blocks are equal: the interval has no width."""
    agreement = training_lengths()
    assert agreement.table().cells == [
        ["encoding", "perplexity", "memory (%)", "time per token (%)"],
        [
            "cable-v1, 512 / sinusoidal, 1,024",
            "-0.65 (-0.65 to -0.65) (-0.65, +0.0%)",
            "-48.00 (-48%, +0.0%)",
            "3.50 (3.50 to 3.50) (+3.5%, +0.0%)",
        ],
    ]
    assert [*agreement.row().values()][1:5] == ["5", "3", "yes", "3"]
    assert training_lengths(size="tiny").differing() == ["size"]  # in the abstract: medium
    assert training_lengths(dataset="wikitext103").differing() == ["dataset"]
    quarter = training_lengths(4, "quickstart", "toy")
    assert quarter.differing() == ["block_size", "dataset", "size"]
    assert "-0.65 (-0.65 to -0.65) (-0.65)" in quarter.table().text()
    assert not training_lengths(scale=2).measured()


def test_a_speed_at_another_context_is_measured_with_this_setting():
    """The paper's t5 has 0.909 of sandwich's speed at 512 tokens; here half, at 2,048."""
    printed = paper.load("sandwich_section6.2_speed")
    result = {"model": "small", "device": "cuda:0 (H100)"}
    cases = {"t5": entry(2, 512, 1e9), "sandwich": entry(1, 512, 1e9)}
    for contexts, differing in ((["512", "2048"], []), (["1024", "2048"], ["context"])):
        measured = result | {"contexts": dict.fromkeys(contexts, cases)}
        (cell,) = speed_cells("train", measured, printed)
        assert cell.ours[:2] == (0.5, "0.500 (0.500 to 0.500)")
        assert cell.theirs.text == "0.909"
        assert Agreement(printed, [cell]).differing() == differing
        assert f"{int(contexts[-1] if differing else 512):,}" in cell.row
        assert not [*speed_cells("generate", measured, printed)]
