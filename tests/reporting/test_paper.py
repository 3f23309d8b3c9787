"""The tables in results/paper hold the numbers that the papers print."""

import re

import pytest
import yaml
from conftest import ROOT

import pe_spec
from reporting import paper
from train_gpt import Config

# Read from the papers: file, training length, encoding, context, number with ± and mark.
NUMBERS = """
cable_table1_fineweb-edu-10b_medium 1024 cable 15360 15.41
cable_table1_fineweb-edu-10b_medium 1024 rope 2048 38.95
cable_table1_fineweb-edu-10b_medium 1024 sinusoidal 512 17.98
cable_table1_fineweb-edu-10b_medium 1024 t5 4096 243.69
cable_table1_fineweb-edu-10b_medium 1024 t5-clip 4096 243.69
cable_table1_fineweb-edu-10b_medium 1024 learnable 1024 17.47
cable_table1_fineweb-edu-10b_medium 1024 learnable 2048 —
cable_table1_fineweb-edu-10b_medium 1024 fox 512 —
cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512 512 dapev2+kerple 8192 18.92
cable_table5_wikitext-103_small 1024 kerple 8192 18.91
cable_v1_section5.1_wikitext-103_tiny_trained-at-512 512 cable-v1 8192 22.86
cable_v1_section5.1_wikitext-103_tiny_trained-at-1024 1024 cable-v1 1024 23.75
cable_v1_section5.1_wikitext-103_tiny_trained-at-1024 1024 cable-v1 8192 22.22
sandwich_table1_arxiv 512 window:w=120 1024 8.90
sandwich_table1_arxiv 512 alibi-shift:shift=-3 512 5.76
sandwich_table4_openwebtext2 512 alibi-equal:h=6 2048 165
sandwich_table2_arxiv 2048 alibi-shift:shift=6 4096 6.2
sandwich_table2_openwebtext2 1024 window:w=160 2048 19.9
sandwich_table3_github 512 rope 2048 5.94 ± 0.64†
sandwich_table3_openwebtext2 512 sandwich-smoothed 8192 24.0 ± 2.9
sandwich_table5_arxiv 512 sandwich 16384 5.35
sandwich_table3_openwebtext2 512 sandwich 512 23.5 ± 3.8
sandwich_table3_openwebtext2 512 alibi 4096 23.5 ± 3.3∗
sandwich_table3_openwebtext2 512 sinusoidal 512 26 ± 1†
sandwich_table3_openwebtext2 512 rope 8192 343†
sandwich_table3_arxiv 512 kerple 512 5.22 ± 0.37
sandwich_table3_arxiv 512 t5 1024 4.91 ± 0.35∗
sandwich_table3_arxiv 512 t5-clip 1024 —
sandwich_table3_github 512 sandwich-smoothed 1024 2.70 ± 0.07
sandwich_table3_github 512 cable 8192 —
cable_table1_fineweb-edu-10b_medium 1024 sinusoidal 4096 1,058.84
"""


@pytest.mark.parametrize("row", NUMBERS.strip().splitlines())
def test_numbers_of_tables(row):
    """T5 in the Sandwich paper has logarithmic buckets: the clipped bias has no numbers."""
    file, trained_at, pe, context, text = row.split(" ", 4)
    table = paper.load(file)
    assert table.dataset.replace("wikitext", "wikitext-") in file
    assert table.size in file or (table.is_sandwich and table.size == "small")
    assert table.trained_at == (None if "sandwich_table2" in file else int(trained_at))
    number = re.match(r"[\d.,]+", text)
    printed = table.numbers.get((table.name_of(pe), int(context)), paper.Number())
    assert printed.text == text
    assert printed.value == (float(number[0].replace(",", "")) if number else None)
    assert not number or table.lengths[table.name_of(pe)] == int(trained_at)


def test_every_table_of_the_index_loads():
    found = set()
    for file in paper.FOLDER.glob("*.csv"):
        found |= {line.partition(",")[0] for line in file.read_text().splitlines()[1:]}
    assert found == {*paper.index()}
    for name in paper.index():
        table = paper.load(name)
        assert table.rows and bool(table.numbers) == (table.metric in ("Perplexity", "nDCG@10"))
        for pe, _ in table.numbers:
            pe_spec.parse(pe)


CONFIGS = {  # of the scripts of the tables
    "cable_table1_wikitext-103_tiny": "wikitext103_tiny",
    "cable_table4_fineweb-edu-10b_tiny": "fineweb-edu_tiny",
    "cable_table5_wikitext-103_medium": "wikitext103_medium",
    "cable_table5_wikitext-103_small": "wikitext103_small",
    "cable_table1_fineweb-edu-10b_medium": "fineweb-edu_medium",
    "cable_table2_fineweb-edu-10b_small_dapev2_trained-at-512": "fineweb-edu_small",
    "cable_table3_mldr_ndcg10_bert": "fineweb-edu_bert",
    "sandwich_table3_arxiv": "sandwich_small",
}


@pytest.mark.parametrize("name, config", CONFIGS.items())
def test_settings_of_tables_are_those_of_the_configs(name, config):
    """Sandwich's size, 162M parameters, fits untied embeddings only."""
    written = yaml.safe_load((ROOT / f"configs/{config}.yaml").read_text())
    settings = vars(Config(**written))
    table = paper.load(name)
    assert table.size == settings["size"]
    for key in ("steps", "tokens_per_step", "lr"):
        assert table.settings[key] == settings[key]
    assert settings["tied"] == table.settings["tied"] == (not table.is_sandwich)


def test_generalization_is_from_version_1():
    rows = paper.load("cable_v1_table1_generalization").rows
    names = ("size", "encoding", "quantity")
    numbers = {tuple(row[name] for name in names): row["value"] for row in rows}
    names = ("hellaswag_acc", "fineweb10b_ppl", "wikitext2_ppl", "wikitext103_ppl")
    found = [numbers["medium", "cable-v1", name] for name in names]
    assert found == ["36.71", "25.89", "41.10", "46.43"]
    assert numbers["small", "t5", "hellaswag_acc"] == "30.60" and len(rows) == 40


def test_differences_between_training_lengths_in_the_text_of_version_1():
    """Values read from the abstract and section 5.4."""
    names = ("quantity", "encoding", "trained_at", "baseline", "baseline_trained_at", "difference")
    rows = paper.load("cable_v1_training-lengths").rows
    headline = ("cable-v1", "512", "sinusoidal", "1024")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("perplexity", *headline, "-0.65"),
        ("memory", *headline, "-48%"),
        ("time per token", *headline, "+3.5%"),
        ("perplexity", "k-cable-v1", "512", "cable-v1", "1024", "< 0"),
        ("perplexity", "cable-v1", "1024", "sinusoidal", "8192", "-0.59"),  # 22.22 against 22.81
    ]


def test_receptive_fields_in_the_text_of_sandwich():
    """Values read from section 5.1: of 512 to 2,048 tokens."""
    rows = paper.load("sandwich_section5.1_receptive_fields").rows
    fields = {row["encoding"]: row["relation"] + row["receptive_field"] for row in rows}
    windows = {f"window:w={w}": "<512" for w in (40, 80, 100)}
    windows |= {"window:w=120": "=768", "window:w=160": "=1024", "window:w=320": "=1536"}
    shifts = {f"alibi-shift:shift={shift}": "=2048" for shift in (0, 2, 4, 6, 8)}
    assert fields == windows | {"alibi-shift:shift=-3": "=768"} | shifts


def test_speeds_in_the_text():
    """Sections 5.3, and 5.2 of version 1: ratios of speed."""
    rows = paper.load("cable_section5.3_speed").rows + paper.load("cable_v1_section5.2_speed").rows
    names = ("benchmark", "context", "encoding", "relative_to")
    assert [(*(row[name] for name in names), row["ratio"][:6]) for row in rows] == [
        ("train", "512", "dapev2+cable", "cable", "0.3157"),  # 0.6M of 1.9M tokens/s
        ("generate", "512", "dapev2+cable", "cable", "0.5882"),  # 1.7 times slower
        ("train", "512", "cable-v1", "alibi", "1"),
        ("train", "1024", "cable-v1", "alibi", "0.92"),  # 8% overhead
        ("generate", "512", "cable-v1", "alibi", "0.89"),  # 11% overhead
        ("generate", "2048", "cable-v1", "alibi", "1.0833"),  # 39 and 36 tokens/s
    ]
