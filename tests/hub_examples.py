"""Tiny repositories for tests/hub_server.py: FineWeb-Edu, shards, WikiText, MLDR, MS MARCO, GPT-2.

Names, files and columns are those of the repositories on the hub; contents are made up.
"""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

WIKITEXT_LINES = ["", " = {} = ", "", " First paragraph of {} . ", " = = Section = = ", ""]


def write_card(repository: Path, configs: dict[str, dict[str, str]]) -> Path:
    """Write README.md, which names the files of each split by configuration."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [f"  - {{split: {split}, path: {path}}}" for split, path in splits.items()]
    (repository / "README.md").write_text("\n".join([*lines, "---", ""]))
    return repository


def fineweb_texts(count: int = 60) -> list[str]:
    """Return the texts of the rows, in order."""
    return [f"{n}: naïve " + f"word{n} " * (n * 7 % 30) for n in range(count)]


def write_fineweb(folder: Path, name: str = "HuggingFaceFW/fineweb-edu") -> Path:
    """Write three parquet files of 20 rows as FineWeb-Edu's sample-10BT; return their folder."""
    repository = folder / "datasets" / name
    texts = fineweb_texts()
    for number in range(3):
        rows = texts[20 * number : 20 * (number + 1)]
        table = {"text": rows, "id": [str(n) for n in range(len(rows))], "score": [3.0] * len(rows)}
        write_parquet(repository / f"sample/10BT/{number:03d}_00000.parquet", table)
    write_parquet(repository / "data/CC-MAIN-2024-10/000_00000.parquet", {"text": ["not this"]})
    configs = {"default": {"train": "data/*/*"}, "sample-10BT": {"train": "sample/10BT/*"}}
    return write_card(repository, configs)


def write_shards(folder: Path, name: str = "kjj0/finewebedu10B-gpt2", count: int = 3) -> Path:
    """Write shards of 100 GPT-2 tokens; return their folder."""
    repository = folder / "datasets" / name
    repository.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, 100
        tokens = np.arange(100, dtype="<u2")
        tokens[: number + 2] = 50256
        file = f"finewebedu_{'train' if number else 'val'}_{number:06d}.bin"
        (repository / file).write_bytes(header.tobytes() + tokens.tobytes())
    return repository


def wikitext_lines(split: str, articles: int = 4) -> list[str]:
    """Return the rows of a split: lines with their spaces, blank lines empty."""
    return [
        line.format(f"{split} {n}") + ("\n" if line else "")
        for n in range(articles)
        for line in WIKITEXT_LINES
    ]


def write_wikitext(folder: Path) -> Path:
    """Write wikitext-2-raw-v1 and wikitext-103-raw-v1; return their folder."""
    texts = {split: {"text": wikitext_lines(split)} for split in ("test", "train", "validation")}
    tables = {f"wikitext-{size}-raw-v1": texts for size in ("103", "2")}
    return write_tables(folder / "datasets/Salesforce/wikitext", tables)


def write_mldr(folder: Path) -> Path:
    """Write the English task of MLDR, with two documents and queries; return its folder."""
    parts = {
        "corpus": {"_id": ["d0", "d1"], "title": ["", ""], "text": ["one text", "another"]},
        "queries": {"_id": ["q0", "q1"], "text": ["one?", "which?"]},
        "qrels": {"query-id": ["q0", "q1"], "corpus-id": ["d0", "d1"], "score": [1, 1]},
    }
    tables = {f"en-{part}": {"test": columns} for part, columns in parts.items()}
    return write_tables(folder / "datasets/mteb/MultiLongDocRetrieval", tables)


def write_msmarco(folder: Path, count: int = 1200) -> Path:
    """Write triplets as the hard negatives of MS MARCO; return their folder."""
    name = "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1"
    names = ("query", "positive", "negative")
    columns = {name: [f"{name} {n}" for n in range(count)] for name in names}
    return write_tables(folder / "datasets" / name, {"triplet-hard": {"train": columns}})


def write_tables(repository: Path, configs: dict[str, dict[str, dict]]) -> Path:
    """Write the columns of each configuration and split as one file, and the card."""
    paths = {}
    for config, splits in configs.items():
        paths[config] = {split: f"{config}/{split}-*" for split in splits}
        for split, columns in splits.items():
            write_parquet(repository / f"{config}/{split}-00000-of-00001.parquet", columns)
    return write_card(repository, paths)


def write_gpt2(folder: Path, name: str = "openai-community/gpt2") -> Path:
    """Write a GPT-2 of one layer with GPT-2's vocabulary and random weights; return its folder."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=32)
    repository = folder / "models" / name
    GPT2LMHeadModel(config).save_pretrained(repository)
    return repository


def write_datasets(folder: Path) -> None:
    for write in (write_fineweb, write_shards, write_wikitext, write_mldr, write_msmarco):
        write(folder)


def write_parquet(path: Path, columns: dict, row_group_size: int = 7) -> None:
    """Write a table, in several row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
