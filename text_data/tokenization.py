"""How does text become tokens, on all cores and in order? What the programs that prepare data share.

    encoding, meta = corpus.begin("data/mine", "gpt2", shard_tokens=10**8, source={...})
    writer = shards.ShardWriter(meta, "train", 10**8)
    documents = ((writer, number, corpus.pieces(text)) for number, text in corpus.rows(...))
    corpus.write(meta, [writer], documents, encoding, mend="give more text")

A document is (writer, number, pieces of text): the writer of its split, its number in that writer's source, its text.
"""

import glob
import hashlib
import logging
import lzma
import os
import sysconfig
import time
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from errors import InputError
from text_data import shards

PIECE = (
    1 << 20
)  # characters of text tokenised at a time: bounds memory, and keeps tiktoken's regex fast on endless lines
ROWS = 256  # rows of a table read at a time; a stream can be taken up again at every multiple
TABLES = {
    ".jsonl": "json",
    ".parquet": "parquet",
}  # suffix -> the builder of `datasets` that reads it


def tiktoken_encoding(name: str):
    """tiktoken's encoding `name`: "gpt2", or "bytes", whose 256 tokens are the bytes of UTF-8 and need no download.

    Raises InputError for other names, and where the vocabulary of gpt2 can be had neither from the network nor a cache.
    """
    import tiktoken

    if name == "bytes":
        return tiktoken.Encoding(
            name,
            pat_str=r"(?s).",
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={"<|endoftext|>": 256},
        )
    if name != "gpt2":
        raise InputError(f"unknown tokenizer '{name}': choose bytes or gpt2")
    try:
        return tiktoken.get_encoding(name)
    except OSError as error:  # requests' errors are OSErrors
        raise InputError(
            f"the gpt2 vocabulary could not be fetched ({type(error).__name__}): connect once, or set "
            "TIKTOKEN_CACHE_DIR to a folder that has it, or choose --tokenizer bytes"
        ) from None


def begin(out_dir: str, tokenizer: str, shard_tokens: int, source: dict) -> tuple:
    """The tokenizer's encoding and the meta.json of a preparation, begun earlier or now; nothing is written yet.

    source: what the tokens are made of, JSON. Raises InputError where out_dir holds something else.
    """
    if shard_tokens < 1:
        raise InputError(f"shard_tokens is {shard_tokens}: it must be at least 1")
    encoding = tiktoken_encoding(tokenizer)
    return encoding, shards.Meta(
        out_dir,
        {
            "dataset": Path(out_dir).resolve().name,
            "tokenizer": encoding.name,
            "vocab_size": encoding.n_vocab,
            "source": {**source, "shard_tokens": shard_tokens},
        },
    )


def write(
    meta: shards.Meta,
    writers: list[shards.ShardWriter],
    documents,
    encoding,
    mend: str,
    total: int | None = None,
) -> None:
    """Makes the shards that are still missing, and says what there is. total: the number of documents, where it is known.

    Raises InputError, with `mend`, where a split gets no text; all is taken back then.
    """
    if meta.value["complete"]:
        print(f"{meta.folder} is prepared already: {summary(meta)}")
        return
    with completing(meta):
        tokenise(documents, encoding, writers, total)
        empty = [split for split, record in meta.value["splits"].items() if not record["shards"]]
        if empty:
            meta.remove()
            raise InputError(f"no text is left for the split '{empty[0]}': {mend}")


@contextmanager
def completing(meta: shards.Meta):
    """Takes the folder, and says what it holds when the block ends well; wrong input before the first shard leaves nothing."""
    meta.value["complete"] = False
    meta.write()
    try:
        yield
    except InputError:
        if not any(record["shards"] for record in meta.value["splits"].values()):
            meta.remove()
        raise
    meta.value["complete"] = True
    meta.write()
    print(f"{meta.folder}: {summary(meta)}")


def summary(meta: shards.Meta) -> str:
    splits = meta.value["splits"].items()
    return ", ".join(
        f"{split} {s['tokens']:,} tokens of {s['documents']:,} documents" for split, s in splits
    )


def tokenise(
    documents, encoding, writers: list[shards.ShardWriter], total: int | None = None
) -> None:
    """Tokenises on all cores, in order, a bounded number of pieces ahead; every document opens with <|endoftext|>."""
    workers = os.cpu_count() or 1
    waiting, batch, size = deque(), [], 0
    offset = tokens_done = 0
    current, begun = None, time.perf_counter()

    def encode(batch):
        return [
            (writer, number, encoding.encode_to_numpy(text, disallowed_special=()))
            for writer, number, text in batch
        ]

    def store(results):
        nonlocal offset, current, tokens_done
        for writer, number, tokens in results:
            if (writer, number) != current:
                current, offset = (writer, number), 0
                tokens = np.concatenate([[encoding.eot_token], tokens])
                bar.update()
            writer.add(number, offset, tokens)
            offset, tokens_done = offset + len(tokens), tokens_done + len(tokens)
        bar.set_postfix_str(
            f"{tokens_done:,} tokens, {tokens_done / (time.perf_counter() - begun):,.0f} tokens/s",
            refresh=False,
        )

    with (
        ThreadPoolExecutor(workers) as pool,
        tqdm(total=total, unit=" documents", desc="prepare", disable=None) as bar,
    ):
        for writer, number, text in (
            (writer, number, text) for writer, number, pieces in documents for text in pieces
        ):
            batch.append((writer, number, text))
            size += len(text)
            if size >= PIECE // 4:
                waiting.append(pool.submit(encode, batch))
                batch, size = [], 0
            if len(waiting) > 4 * workers:
                store(waiting.popleft().result())
            if all(writer.full for writer in writers):
                pool.shutdown(wait=False, cancel_futures=True)
                return
        waiting.append(pool.submit(encode, batch))
        for future in waiting:
            store(future.result())
    for writer in writers:
        writer.close()


def local(files: list[Path]) -> dict:
    """The arguments of datasets.load_dataset for files of one kind on this disk: tables, or text, a row per line."""
    kind = table_kind(files[0]) or "text"
    chunk = (
        {"chunksize": PIECE} if kind == "json" else {}
    )  # `datasets` reads the first chunk twice, and all before it goes on
    return {
        "path": kind,
        "data_files": [glob.escape(str(path)) for path in files],
        "split": "train",
        **chunk,
    }


def rows(
    name: str,
    column: str,
    load: dict,
    mark=(0, None),
    on_mark=lambda number, state: None,
    mend="mend it, or leave it out",
):
    """(number, text) of each row of a table, on this disk or streamed from the hub, from `mark` on.

    name: of the table, in messages; load: the arguments of datasets.load_dataset. on_mark: called with (number of the row
    that comes next, a state in JSON) now and then; both together are a `mark` that a later call can begin at. That one reads
    the file again that holds the mark, and no earlier ones but where it lies at the file's beginning; all of them under
    another version of `datasets`, whose states may differ.
    Raises InputError where rows cannot be had.
    """
    import datasets

    datasets.disable_progress_bars()
    for handler in logging.getLogger("datasets").handlers:
        handler.addFilter(_no_error)  # we tell of errors ourselves, in one line
    with reading(name, mend):
        table = datasets.load_dataset(**load, streaming=True).with_format("arrow")
        number, state = (
            mark if mark[1] and mark[1]["datasets"] == datasets.__version__ else (0, None)
        )
        if state:
            table.load_state_dict(state["stream"])
        for chunk in table.iter(ROWS):
            texts = chunk[column].to_pylist() if column in chunk.column_names else [None]
            if not all(isinstance(text, str) for text in texts):
                raise InputError(
                    f"{name}: no text in column '{column}': choose --text_column from {' '.join(chunk.column_names)}"
                )
            yield from enumerate(texts, number)
            number += len(texts)
            on_mark(number, {"datasets": datasets.__version__, "stream": table.state_dict()})


def _no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


@contextmanager
def reading(name: str, mend: str):
    """Turns what `datasets` and the hub raise for missing, damaged or unreachable data into an InputError of one line."""
    import datasets
    from huggingface_hub.errors import EntryNotFoundError, HTTPError

    try:
        yield
    except InputError:
        raise
    except (
        ConnectionError,
        HTTPError,
        EntryNotFoundError,
        datasets.exceptions.DatasetNotFoundError,
    ) as error:
        raise InputError(
            f"{name} cannot be fetched from the hub ({_line(error)}): connect and start again, it goes on from what is there; or {mend}"
        ) from None
    except StopIteration:  # of a file without a row
        raise InputError(f"{name} holds no rows: {mend}") from None
    except (
        datasets.exceptions.DatasetsError,
        ValueError,
        OSError,
        EOFError,
        lzma.LZMAError,
        zlib.error,
    ) as error:
        raise InputError(
            f"{name} cannot be read ({_line(error.__cause__ or error)}): {mend}"
        ) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def pieces(text: str):
    """A long text in parts that are tokenised one by one."""
    return (text[i : i + PIECE] for i in range(0, len(text) or 1, PIECE))


def standard_library() -> list[Path]:
    """The modules of this Python's standard library, without tests (which many distributions strip) and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = sorted(
        path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts)
    )
    if not files:
        raise InputError(
            f"{root} holds no source files of the standard library: name a text of your own"
        )
    return files


def table_kind(path: Path) -> str | None:
    """The builder of `datasets` for a file of rows, compressed or not; None for others."""
    return next((TABLES[suffix] for suffix in path.suffixes[-2:] if suffix in TABLES), None)


def find(
    sources: list[str],
    accepts=table_kind,
    kinds: str = "jsonl or parquet",
    besides: Path | None = None,
) -> list[Path]:
    """The files named, and those in the folders named that `accepts` takes, hidden ones and those in `besides` left out; sorted. kinds:
    these, in words."""
    problems = [
        f"source {source} does not exist: name another"
        for source in sources
        if not Path(source).exists()
    ]
    if problems:
        raise InputError(*problems)
    files, passed, besides = [], 0, besides and besides.resolve()
    for source in map(Path, sources):
        if source.is_file():
            files.append(source)
            continue
        visible = [
            path
            for path in source.rglob("*")
            if path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(source).parts)
            and not (besides and path.resolve().is_relative_to(besides))
        ]
        accepted = [path for path in visible if accepts(path)]
        passed += len(visible) - len(accepted)
        files += accepted
    if passed:
        print(f"{passed} files that are not {kinds} are passed over")
    if not files:
        raise InputError(f"{' '.join(sources)}: no {kinds} files there")
    return sorted(set(files))


def fingerprint(files: list[Path]) -> str:
    """A hash of the files' names, sizes, and first and last megabytes: enough to tell that a preparation is the same one."""
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            digest.update(file.read(2**20))
            file.seek(max(file.tell(), size - 2**20))
            digest.update(file.read())
    return digest.hexdigest()
