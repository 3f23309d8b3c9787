"""The numbers of docs/paper_anomalies.md, recomputed from results/paper."""

import csv
from pathlib import Path

import pytest

from reporting import paper

PAGE = Path(__file__).resolve().parents[2] / "docs" / "paper_anomalies.md"
FINEWEB = "cable_table1_fineweb-edu-10b_medium"
WIKITEXT = "cable_table1_wikitext-103_tiny"
TINY = "cable_table4_fineweb-edu-10b_tiny"
SMALL = "cable_table4_fineweb-edu-10b_small"
TABLE2 = "cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512"
TABLE5 = ("cable_table5_wikitext-103_medium", "cable_table5_wikitext-103_small")


def numbers(name: str, pe: str) -> dict[int, float]:
    return paper.load(paper.FOLDER / f"{name}.csv").numbers[pe]


def row(beginning: str) -> str:
    """Return the row of the page whose first cells are these."""
    found = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {beginning}")]
    assert len(found) == 1, (beginning, found)
    return found[0]


def check_row(beginning: str, *values) -> None:
    """Check that the row prints these values."""
    text = row(beginning)
    for value in values:
        assert str(value) in text, (beginning, value)


def test_parameters_and_heads_of_gpt2():
    blocks = 24 * (12 * 1024**2 + 13 * 1024) + 2 * 1024
    millions = [round((blocks + words * 1024) / 1e6, 1) for words in (50304, 30522)]
    check_row("§4.2 | GPT-2 medium", *(f"{m}M" for m in millions))
    check_row("§4.2 | GPT-2 small", 768 / 10)


def test_epochs():
    epochs = [f"{steps * 524288 / 118e6:.1f}" for steps in (9000, 5000, 3000)]
    check_row("§4.2 | 524,288 tokens", *epochs)
    tokens, of_section_4 = (14000 * per_step for per_step in (4 * 32 * 512, 524288))
    beginning = "§5.5 | 14k steps"
    check_row(beginning, "of 10B tokens", f"{tokens / 1e9:.2f}B", f"{tokens / 10e9:.2f} epochs")
    check_row(beginning, f"{of_section_4 / 1e9:.1f}B, {of_section_4 / 10e9:.2f} epochs")


def test_cable_does_not_improve_at_every_length():
    for name in (FINEWEB, TINY, SMALL, TABLE2):
        cable = numbers(name, "cable")
        assert cable[8192] > cable[4096]
    cable = numbers(FINEWEB, "cable")
    check_row('§5.1 | "consistent', cable[4096], cable[8192])
    assert cable[8192] == cable[15360]


def test_cable_without_weights_and_alibi():
    worse = {}
    for name in (FINEWEB, WIKITEXT, SMALL, TINY, *TABLE5):
        cable_nw, alibi = numbers(name, "cable-nw"), numbers(name, "alibi")
        assert len(alibi) == 6
        worse[name] = [cable_nw[length] - alibi[length] for length in alibi]
    counts = {name: sum(x >= 0 for x in differences) for name, differences in worse.items()}
    assert sum(differences.count(0) for differences in worse.values()) == 1
    check_row('§5.1 | "even', f"{sum(counts.values())} of 36")
    check_row('§5.1 | "even', f"{counts[FINEWEB] + counts[WIKITEXT]} of 12")


def test_t5_and_rope_beyond_the_training_length():
    t5, rope = numbers(FINEWEB, "t5"), numbers(FINEWEB, "rope")
    check_row("§5.1 | T5-bias", t5[1024], t5[2048], f"{t5[2048] / t5[1024]:.1f} times")
    check_row("§5.1 | T5-bias", f"RoPE {rope[2048] / rope[1024]:.1f} times")
    rope, cable = numbers(WIKITEXT, "rope"), numbers(WIKITEXT, "cable")
    assert [n for n in rope if rope[n] < cable[n]] == [512, 1024]


def test_lengths_sizes_and_dashes_of_the_tables():
    """15,360 tokens; sizes and data sets; learned positions end at the training length."""
    index = list(csv.DictReader((paper.FOLDER / "index.csv").open(newline="")))
    trained = {}
    for line in index:
        if line["what"] in ("CABLE, table 1", "CABLE, table 4", "CABLE, table 5"):
            table = paper.load(paper.FOLDER / line["file"])
            assert max(table.contexts()) == 15 * table.trained_at
            assert set(table.numbers["learnable"]) == {512, 1024}
            trained.setdefault((table.where, table.dataset), set()).add(table.size)
    check_row("§5.1 | lower perplexity", "15,360 tokens, 15 times")
    assert "tiny" in trained["table 4", "fineweb-edu"]
    assert trained["table 5", "wikitext103"] == {"small", "medium"}
    check_row("§4.2 | FineWeb-Edu", "table 4: tiny", "table 5: medium and small")
    check_row("§A.2 | learnable", "dashes beyond 1,024")


def test_alibi_of_table_4():
    alibi, cable = numbers(TINY, "alibi"), numbers(TINY, "cable")
    assert [n for n in alibi if alibi[n] < cable[n]] == [8192]
    assert alibi[8192] == cable[15360]
    column = ", ".join(f"{alibi[n]:.2f}" for n in (2048, 4096, 8192, 15360))
    check_row("table 4, tiny", column, cable[8192])


def test_alibi_beyond_the_training_length():
    tiny = numbers(TINY, "alibi")
    longer = max(value for length, value in tiny.items() if length > 1024)
    assert longer < tiny[1024]
    check_row("§5.1 | on FineWeb-Edu, ALiBi", f"{tiny[1024]:.2f} at 1,024", f"{longer:.2f} beyond")
    for name in (WIKITEXT, *TABLE5):
        values = [*numbers(name, "alibi").values()]
        assert values == sorted(values, reverse=True)
    alibi = numbers(WIKITEXT, "alibi")
    printed = f"from {alibi[512]:.2f} at 512 to {alibi[15360]:.2f} at 15,360"
    check_row('§5.1 | ALiBi: "slight', printed)


def test_models_with_dapev2_are_lower_than_cable():
    with_cable, with_kerple = (numbers(TABLE2, f"dapev2+{pe}") for pe in ("cable", "kerple"))
    cable = numbers(TABLE2, "cable")
    assert all(max(with_cable[n], with_kerple[n]) < cable[n] for n in cable)
    printed = f"{with_cable[8192]} and {with_kerple[8192]} at 8,192 tokens, CABLE {cable[8192]}"
    check_row("v3 §5.3", printed)


def test_rope_of_table_3():
    rope = numbers("cable_table3_mldr_ndcg10_bert", "rope")
    check_row("§5.5 | BERT", f"from {rope[512]} to {rope[16384]}")


def test_generalization_of_version_1():
    table = {
        size: {pe: values for (s, pe), values in paper.generalization().items() if s == size}
        for size in ("small", "medium")
    }
    fineweb = {pe: values["fineweb10b_ppl"] for pe, values in table["small"].items()}
    assert min(fineweb, key=fineweb.get) == "alibi"
    check_row("table 1, small", fineweb["alibi"], fineweb["cable-v1"])
    rows = [*table["small"].values(), *table["medium"].values()]
    assert all(values["wikitext2_ppl"] < values["wikitext103_ppl"] for values in rows)
    medium = table["medium"]["cable-v1"]
    printed = f"{medium['wikitext2_ppl']:.2f} and {medium['wikitext103_ppl']:.2f}"
    check_row("table 1 | Wiki2", printed)
    gains = {
        pe: values["hellaswag_acc"] - table["small"][pe]["hellaswag_acc"]
        for pe, values in table["medium"].items()
    }
    others = [gain for pe, gain in gains.items() if pe != "rope"]
    assert gains["rope"] < 0 and min(others) > 4 and max(others) < 6
    second, first = sorted(fineweb.values())[-2:]
    assert fineweb["rope"] == first
    check_row("table 1, RoPE", f"{first / second:.1f} times")
    for column in ("wikitext2_ppl", "wikitext103_ppl"):
        order = sorted(table["small"], key=lambda pe: table["small"][pe][column])
        printed = [pe for pe in order if pe != "t5-clip"]  # the copy of t5
        assert printed.index("rope") < 3


def test_cable_trained_at_512_and_sinusoidal_trained_at_8192():
    with open(paper.FOLDER / "cable_v1_training-lengths.csv", newline="") as file:
        (sinusoidal,) = [
            line["baseline_value"] for line in csv.DictReader(file) if line["context"] == "8192"
        ]
    cable = numbers("cable_v1_section5.1_wikitext-103_tiny_trained-at-512", "cable-v1")
    assert min(cable[512], cable[8192]) > float(sinusoidal)
    check_row("§5.4 | all Cable models", cable[8192], f"{cable[512]} at 512", sinusoidal)


@pytest.mark.parametrize("name", ["table1_arxiv", "table4_openwebtext2"])
def test_three_equal_columns_of_sandwich(name):
    columns = ["alibi-shift:shift=6", "alibi-shift:shift=8", "alibi-equal:h=8"]
    first, *others = (numbers(f"sandwich_{name}", pe) for pe in columns)
    assert len(first) == 5 and all(other == first for other in others)


def test_alibi_of_two_tables_of_sandwich():
    texts = []
    for first, second in (
        ("table1_arxiv", "table3_arxiv"),
        ("table4_openwebtext2", "table3_openwebtext2"),
    ):
        own = numbers(f"sandwich_{first}", "alibi-shift:shift=0")
        other = numbers(f"sandwich_{second}", "alibi")
        ratios = [other[n] / own[n] - 1 for n in own]
        texts += [f"{own[512]} to {own[8192]}", f"{other[512]} to {other[8192]}"]
        texts += [f"{abs(ratios[0]):.0%} {'lower' if ratios[0] < 0 else 'higher'}"]
        assert max(ratios) - min(ratios) < 0.03
    check_row("tables 1, 4 and 3", *texts)


def test_table_2_of_sandwich_is_not_stable():
    for text in ("arxiv", "openwebtext2"):
        values = numbers(f"sandwich_table2_{text}", "alibi-shift:shift=6")
        printed = ", ".join(f"{values[n]}" for n in (2048, 4096, 8192))
        check_row("table 2, Δ = 6", printed, f"{values[8192] / values[2048] - 1:.0%}")


def test_perplexities_of_alibi_that_fall():
    falling = {}
    for pe in paper.load(paper.FOLDER / "sandwich_table1_arxiv.csv").numbers:
        values = numbers("sandwich_table1_arxiv", pe)
        if pe.startswith("alibi") and values[1024] < values[512]:
            falling[pe] = f"from {values[512]:.2f} to {values[1024]:.2f}"
    assert falling.keys() == {"alibi-shift:shift=2", "alibi-equal:h=0"}
    check_row("§4.4", *falling.values())


def test_receptive_fields_and_perplexities_of_alibi():
    fields = {}
    with (paper.FOLDER / "sandwich_section5.1_receptive_fields.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            fields[line["encoding"]] = int(line["receptive_field"])
    assert fields["alibi-shift:shift=0"] == 2048 == 4 * 512
    growths = []
    for name in ("table1_arxiv", "table4_openwebtext2"):
        values = numbers(f"sandwich_{name}", "alibi-shift:shift=0")
        assert values[8192] / values[2048] < 1.002  # stable
        growths.append(f"{values[8192] / values[512] - 1:.0%}")
    first, second = growths
    beginning = "§1, §6.2, §7"
    check_row(beginning, "2,048 tokens for Δ = 0", "four training lengths")
    check_row(beginning, f"{first} (ArXiv) and {second} (OpenWebText2)")
    arxiv = paper.load(paper.FOLDER / "sandwich_table1_arxiv.csv").numbers
    explodes = {}
    for shift in (0, 2, 4, 6, 8):
        pe = f"alibi-shift:shift={shift}"
        assert fields[pe] == 2048
        explodes[shift] = arxiv[pe][8192] > 2 * arxiv[pe][512]
    assert [shift for shift in explodes if explodes[shift]] == [6, 8]
    check_row("§5.1 | Δ = 6 and 8", "2,048 for Δ = 0, 2 and 4")


def test_segment_of_section_6_2_and_smallest_slope():
    for last, first, second in ((8192, "6,400", "6,656"), (2048, "256", "512")):
        assert (f"{last - 1792:,}", f"{last - 1536:,}") == (first, second)
        check_row('§6.2 | "the almost linear', f"{first} to {second} tokens back")
    check_row("§4.2, slopes", f"from 1 to 1/{2**8}")


def test_windows_of_table_4_at_512_tokens():
    at_512 = {
        w: numbers("sandwich_table4_openwebtext2", f"window:w={w}")[512] for w in (100, 120, 160)
    }
    assert at_512[120] > at_512[100] > at_512[160]
    check_row("table 4 at 512 tokens", *(f"{value:.1f}" for value in at_512.values()))


def test_one_mark_of_table_3_has_the_wrong_direction():
    """† means that sandwich is significantly better (lower), ∗ that it is worse."""
    wrong = []
    for text in ("arxiv", "github", "openwebtext2"):
        table = paper.load(paper.FOLDER / f"sandwich_table3_{text}.csv")
        for pe, marks in table.marks.items():
            for length, mark in marks.items():
                difference = table.value(pe, length) - table.value("sandwich", length)
                if difference * {"†": 1, "∗": -1}[mark] <= 0:
                    wrong.append((text, pe, length))
    assert wrong == [("github", "alibi", 512)]
    github = [numbers("sandwich_table3_github", pe)[512] for pe in ("alibi", "sandwich")]
    check_row("table 3, GitHub", f"{github[0]}†", github[1])


def test_sandwich_is_worse_than_alibi_on_openwebtext2():
    table = paper.load(paper.FOLDER / "sandwich_table3_openwebtext2.csv")
    assert table.mark("alibi", 8192) == "∗"
    ratio = table.value("sandwich", 8192) / table.value("alibi", 8192)
    check_row('§6.2 | "only', f"{ratio - 1:.1%}")


def sandwich_table_3(text: str) -> paper.PaperTable:
    return paper.load(paper.FOLDER / f"sandwich_table3_{text}.csv")


def test_two_models_of_table_2_have_equal_numbers():
    ends = []
    for text in ("arxiv", "openwebtext2"):
        columns = paper.load(paper.FOLDER / f"sandwich_table2_{text}.csv").numbers.values()
        (end,) = {column[8192] for column in columns}
        assert len(columns) == 2
        ends.append(end)
    check_row("table 2, at 8,192", *ends)


def test_steepest_slopes_of_table_4():
    table = paper.load(paper.FOLDER / "sandwich_table4_openwebtext2.csv")
    at_512 = {pe: v[512] for pe, v in table.numbers.items() if pe.startswith("alibi-shift")}
    assert len(at_512) == 6 and min(at_512, key=at_512.get) == "alibi-shift:shift=-3"
    check_row("§4.3, small h", f"({at_512['alibi-shift:shift=-3']})")


def test_sinusoidal_is_not_comparable_at_512_tokens():
    differences = []
    for text in ("openwebtext2", "arxiv", "github"):
        table = sandwich_table_3(text)
        assert table.mark("sinusoidal", 512) == "†"
        differences.append(table.value("sinusoidal", 512) / table.value("sandwich", 512) - 1)
    first, second, third = (f"{difference:.0%}" for difference in differences)
    table = sandwich_table_3("openwebtext2")
    alibi, rope = table.value("alibi", 512), table.value("rope", 512)
    assert alibi < rope
    beginning = '§6.2 | "comparable'
    check_row(beginning, f"{first}, {second} and {third}", f"({alibi})", f"({rope})")


def test_t5_is_worse_than_sandwich_at_8192_tokens():
    values = {"t5": [], "sandwich": []}
    for text in ("openwebtext2", "arxiv", "github"):
        table = sandwich_table_3(text)
        assert table.mark("t5", 8192) == "†"
        for pe, printed in values.items():
            printed.append(table.value(pe, 8192))
        assert values["t5"][-1] > values["sandwich"][-1]
    for first, second, third in values.values():
        check_row("§6.2, learnable", f"{first}, {second} and {third}")


def test_sandwich_is_better_with_a_cache():
    """At 4,096 tokens it is worse on all data, as the text says; at 8,192 not on OpenWebText2."""
    better = {}
    for text in ("arxiv", "openwebtext2", "github"):
        full = sandwich_table_3(text).numbers["sandwich"]
        cached = numbers(f"sandwich_table5_{text}", "sandwich")
        assert cached[4096] > full[4096]
        if cached[8192] < full[8192]:
            better[text] = f"{cached[8192]} instead of {full[8192]}"
    assert better.keys() == {"openwebtext2"}
    check_row("§B", better["openwebtext2"])
