"""The tables in results/paper hold the numbers that the papers print."""

import pe_spec
from reporting import paper


def test_numbers_of_cable():
    """Values read from tables 1, 2 and 5 of the CABLE paper."""
    medium = paper.load(paper.FOLDER / "cable_table1_fineweb-edu-10b_medium.csv")
    assert (medium.source, medium.dataset, medium.size, medium.trained_at) == (
        "CABLE, table 1",
        "fineweb-edu",
        "medium",
        1024,
    )
    assert medium.value("cable", 15360) == 15.41
    assert medium.value("rope", 2048) == 38.95
    assert medium.value("sinusoidal", 512) == 17.98
    assert medium.value("t5", 4096) == medium.value("t5-clip", 4096) == 243.69
    assert medium.value("learnable", 1024) == 17.47
    assert medium.value("learnable", 2048) is None
    assert medium.value("fox", 512) is None
    small = paper.load(
        paper.FOLDER / "cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512.csv"
    )
    assert small.trained_at == 512 and small.value("dapev2+kerple", 8192) == 18.92
    table5 = paper.load(paper.FOLDER / "cable_table5_wikitext-103_small.csv")
    assert table5.value("kerple", 8192) == 18.91


def test_numbers_of_sandwich():
    """Values read from tables 1 to 5 of the Sandwich paper."""
    for name, at, pe, context, value in (
        ("table1_arxiv", 512, "window:w=120", 1024, 8.90),
        ("table1_arxiv", 512, "alibi-shift:shift=-3", 512, 5.76),
        ("table4_openwebtext2", 512, "alibi-equal:h=6", 2048, 165),
        ("table2_arxiv", 2048, "alibi-shift:shift=6", 4096, 6.2),
        ("table2_openwebtext2", 1024, "window:w=160", 2048, 19.9),
        ("table3_github", 512, "rope", 2048, 5.94),
        ("table3_openwebtext2", 512, "sandwich-smoothed", 8192, 24.0),
        ("table5_arxiv", 512, "sandwich", 16384, 5.35),
    ):
        table = paper.load(paper.FOLDER / f"sandwich_{name}.csv")
        assert (table.training_length(pe), table.size) == (at, "small"), name
        assert table.trained_at == (None if "table2" in name else at)
        assert table.value(pe, context) == value, name
        assert table.dataset in name


def test_deviations_and_marks_of_sandwich_table_3():
    """Read from the paper: ± and marks, with and without either."""
    printed = {
        name: paper.load(paper.FOLDER / f"sandwich_table3_{name}.csv").printed
        for name in ("openwebtext2", "arxiv", "github")
    }
    assert printed["openwebtext2"]("sandwich", 512) == "23.5 ± 3.8"
    assert printed["openwebtext2"]("alibi", 4096) == "23.5 ± 3.3∗"
    assert printed["openwebtext2"]("sinusoidal", 512) == "26 ± 1†"
    assert printed["openwebtext2"]("rope", 8192) == "343†"
    assert printed["openwebtext2"]("t5", 8192) == "38.6 ± 7.2†"
    assert printed["arxiv"]("kerple", 512) == "5.22 ± 0.37"
    assert printed["arxiv"]("t5", 1024) == "4.91 ± 0.35∗"
    # Section 6.3: buckets are logarithmic, so the clipped bias has no numbers.
    assert printed["arxiv"]("t5-clip", 1024) == "—"
    assert printed["github"]("rope", 4096) == "11.1 ± 1.55†"
    assert printed["github"]("sandwich-smoothed", 1024) == "2.70 ± 0.07"
    assert printed["github"]("sandwich-smoothed", 8192) == "2.83 ± 0.08"
    assert printed["github"]("cable", 8192) == "—"


def test_every_table_of_the_index_loads():
    names = [line.split(",")[0] for line in (paper.FOLDER / "index.csv").read_text().splitlines()]
    assert sorted([*names[1:], "index.csv"]) == sorted(p.name for p in paper.FOLDER.glob("*.csv"))
    for name in names[1:]:
        if name == paper.GENERALIZATION:  # has its own function
            continue
        table = paper.load(paper.FOLDER / name)
        if isinstance(table, paper.PaperStatements):
            assert table.rows and {row["section"] for row in table.rows}
            continue
        assert table.numbers and all(values for values in table.numbers.values())
        for pe in table.numbers:
            pe_spec.parse(pe)


def test_other_files_are_refused(refused, tmp_path):
    import report

    (tmp_path / "my.csv").write_text("a")
    message = refused(report.main, "x.json", "--paper", tmp_path / "my.csv")[0]
    assert "is not a table of a paper: use one of" in message


def test_generalization_is_from_version_1():
    numbers = paper.generalization()
    assert numbers["medium", "cable-v1"] == {
        "hellaswag_acc": 36.71,
        "fineweb10b_ppl": 25.89,
        "wikitext2_ppl": 41.10,
        "wikitext103_ppl": 46.43,
    }
    assert numbers["small", "t5"] == numbers["small", "t5-clip"]
    assert numbers["small", "t5"]["hellaswag_acc"] == 30.60
    assert ("medium", "cable") not in numbers


def test_numbers_in_the_text_of_version_1():
    """Values read from the abstract and sections 5.1, 5.2 and 5.4 of version 1."""
    for trained_at, context, values in (
        (512, 8192, (25.12, 22.86)),
        (1024, 16384, (23.75, 21.97)),
    ):
        name = f"cable_v1_section5.1_wikitext-103_tiny_trained-at-{trained_at}.csv"
        table = paper.load(paper.FOLDER / name)
        assert table.trained_at == trained_at
        assert (table.value("cable-v1", trained_at), table.value("cable-v1", context)) == values
    assert table.value("cable-v1", 8192) == 22.22
    lengths = paper.load(paper.FOLDER / "cable_v1_training-lengths.csv")
    headline = ("cable-v1", "sinusoidal", (512, 1024))
    assert [lengths.difference(name, *headline) for name in ("perplexity", "memory", "time")] == [
        "-0.65",
        "-48%",
        "+3.5%",
    ]
    # 22.22 against 22.81
    assert lengths.difference("perplexity", "cable-v1", "sinusoidal", (1024, 8192)) == "-0.59"
    assert lengths.difference("perplexity", "k-cable-v1", "cable-v1", (512, 1024)) is None


def test_receptive_fields_in_the_text_of_sandwich():
    """Values read from section 5.1: of 512 to 2,048 tokens."""
    rows = paper.load(paper.FOLDER / "sandwich_section5.1_receptive_fields.csv").rows
    fields = {row["encoding"]: row["relation"] + row["receptive_field"] for row in rows}
    windows = {f"window:w={w}": "<512" for w in (40, 80, 100)}
    windows |= {"window:w=120": "=768", "window:w=160": "=1024", "window:w=320": "=1536"}
    shifts = {f"alibi-shift:shift={shift}": "=2048" for shift in (0, 2, 4, 6, 8)}
    assert fields == windows | {"alibi-shift:shift=-3": "=768"} | shifts


def test_speeds_in_the_text():
    """Sections 5.3, and 5.2 of version 1: ratios of speed."""
    final = paper.load(paper.FOLDER / "cable_section5.3_speed.csv").speed_ratios()
    assert [(*row[:4], round(row[4], 4)) for row in final] == [
        ("train", 512, "dapev2+cable", "cable", 0.3158),  # 0.6M and 1.9M tokens/s
        ("generate", 512, "dapev2+cable", "cable", 0.5882),  # 1.7 times slower
    ]
    first = paper.load(paper.FOLDER / "cable_v1_section5.2_speed.csv").speed_ratios()
    assert [(*row[:2], round(row[4], 4)) for row in first] == [
        ("train", 512, 1.0),
        ("train", 1024, 0.92),  # 8% overhead
        ("generate", 512, 0.89),  # 11% overhead
        ("generate", 2048, 1.0833),  # 39 and 36 tokens/s
    ]
    assert {row[2:4] for row in first} == {("cable-v1", "alibi")}
