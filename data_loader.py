"""Data loader: token shards, windows of tokens, their order, batches on the device.

    shards = Shards("data/stdlib", "train")  # opened and checked
    train = Windows(shards, length=256)  # 257 tokens
    sampler = Sampler(len(train), seed=1)
    inputs, targets = train.batch(sampler.take(16))  # (16, 256) int64 each

`micro_batches` yields the batches of one rank; `prefetch` reads them ahead. docs/data.md describes
the files of a data set, text_data/shards.py writes them.
"""

import hashlib
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from runtime.files import hash_file, read_json, working_folder_of
from runtime.validation import Count, Length, Name, Text

import numpy as np
import torch
from torch import Tensor

from errors import InputError

META = "meta.json"
MAGIC = 20240520  # as in llm.c and modded-nanogpt
HEADER_WORDS = 256  # int32
TOKEN_TYPES = {1: np.dtype("<u2"), 2: np.dtype("<u4")}  # by version
AUTO_VERIFY_TOKENS = 5 * 10**8  # hashing so many takes a second or two
VOCABULARY_MULTIPLE = 64  # embeddings are padded to a multiple of this, for tensor cores


class ShardEntry(TypedDict):
    """A shard's entry in meta.json.

    next: the document and its token that follow the shard. mark: of a streamed source, the
    document, file and row from which the next shard can be read.
    """

    file: Name
    documents: Count
    tokens: Count
    sha256: Text
    next: NotRequired[tuple[Count, Count]]
    mark: NotRequired[tuple[Count, tuple[Count, Count]]]


class SplitEntry(TypedDict):
    documents: Count
    tokens: Count
    shards: list[ShardEntry]


class MetaFile(TypedDict):
    """Content of meta.json; names become parts of file names."""

    dataset: Name
    tokenizer: Text
    vocab_size: Length
    complete: bool
    splits: dict[Name, SplitEntry]
    revision: NotRequired[Text]


def read_meta(folder: str | Path, remedy: str) -> dict:
    """Return a folder's meta.json, or raise InputError, ending with `remedy`."""
    return read_json(Path(folder) / META, remedy, MetaFile)


class TokenFile:
    """The tokens of a shard, read when used: (n,) uint16 or uint32.

    tokens, sha256: of meta.json, compared with the file. Raises InputError for a file that is
    missing, is no shard, or has changed; remedy: what its line ends with.
    """

    def __init__(
        self,
        path: Path,
        tokens: int | None = None,
        sha256: str | None = None,
        remedy="remove it and run the preparation again",
    ):
        self.path = path
        try:
            problem = self._read_header(tokens)
            if sha256 and not problem and hash_file(path) != sha256:
                problem = "has been changed since it was written (its SHA-256 differs)"
        except FileNotFoundError:
            raise InputError(
                f"{path} does not exist{working_folder_of(path)}: run the preparation again to "
                "write missing shards"
            ) from None
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        if problem:
            raise InputError(f"{path} {problem}: {remedy}")

    def _read_header(self, tokens: int | None) -> str | None:
        """Set length and dtype; return what is wrong with the file, or None."""
        header = np.fromfile(self.path, "<i4", HEADER_WORDS)
        if len(header) < HEADER_WORDS or header[0] != MAGIC:
            return f"is not a shard (its first {4 * HEADER_WORDS} bytes are not a shard header)"
        _, version, self.length = header[:3].tolist()
        if version not in TOKEN_TYPES:
            return f"is a shard of version {version}, not 1 or 2"
        if not self.length:
            return "is empty"
        self.dtype = TOKEN_TYPES[version]
        held, rest = divmod(self.path.stat().st_size - header.nbytes, self.dtype.itemsize)
        if held != self.length or rest or tokens not in (None, self.length):
            in_meta = "" if tokens is None else f", meta.json {tokens}"
            return f"holds {held} tokens, its header says {self.length}{in_meta}"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return tokens; safe in threads. Raises InputError if they are gone.

        A memory map would end the process (SIGBUS) if the file is truncated.
        """
        start, stop, step = part.indices(self.length)
        count = max(0, stop - start)
        offset = 4 * HEADER_WORDS + start * self.dtype.itemsize
        try:
            tokens = np.fromfile(self.path, self.dtype, count, offset=offset)
            problem = "it is shorter than before" if len(tokens) < count else None
        except OSError as error:
            problem = error.strerror or error
        if problem:
            raise InputError(
                f"{self.path} cannot be read any more ({problem}): prepare the data again; "
                "a training continues with --resume"
            )
        return tokens[::step]


class Shards:
    """The shards of one split, opened after headers and sizes are checked.

    verify: compare them with their SHA-256 in meta.json: "always", "never", or "auto", which does
    up to AUTO_VERIFY_TOKENS in all.

    Attributes: tokens (one TokenFile per shard), total (of tokens), vocab_size, tokenizer, meta (of
    meta.json), sha256 (over the shards' hashes). Raises InputError with a line per missing or
    changed shard.
    """

    def __init__(self, folder: str | Path, split: str, verify: str = "auto"):
        self.folder = Path(folder)
        self.split = split
        self.meta = read_meta(self.folder, f"prepare {folder}, as with prepare_text.py")
        self.vocab_size = self.meta["vocab_size"]
        self.tokenizer = self.meta["tokenizer"]
        splits = self.meta["splits"]
        entries = splits[split]["shards"] if split in splits else []
        if not self.meta["complete"]:
            raise InputError(f"preparation of {folder} was interrupted: repeat its command")
        if not entries:
            raise InputError(f"{folder} has no split '{split}': choose one of {' '.join(splits)}")
        hashes = "".join(entry["sha256"] for entry in entries)
        self.sha256 = hashlib.sha256(hashes.encode()).hexdigest()
        self.total = sum(entry["tokens"] for entry in entries)
        if verify == "auto" and self.total > AUTO_VERIFY_TOKENS:
            verify = "never"
        self.tokens, problems = [], []
        for entry in entries:
            path = self.folder / entry["file"]
            sha256 = None if verify == "never" else entry["sha256"]
            try:
                self.tokens.append(TokenFile(path, entry["tokens"], sha256))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*problems)

    @property
    def padded_vocab_size(self) -> int:
        """The size rounded up to VOCABULARY_MULTIPLE: 257 -> 320."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


class Windows:
    """Windows of length + 1 tokens, `length` apart, none across two shards.

    A shard's first token and its remainder are never targets, the others once. Raises InputError if
    no window fits.
    """

    counts_correct = False  # whether a validation reports the fraction of correct predictions

    def __init__(self, shards: Shards, length: int):
        self.shards = shards
        self.length = length
        per_shard = ((len(tokens) - 1) // length for tokens in shards.tokens)
        # Number of each shard's first window, then the number of windows.
        self.first = np.cumsum([0, *per_shard])
        if not len(self):
            raise InputError(
                f"{shards.folder} ({shards.split}) has {shards.total} tokens, too few for one "
                f"window of {length} + 1: prepare more text or use a shorter context"
            )

    def __len__(self) -> int:
        return int(self.first[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """Return the shard of a window, and its offset there."""
        shard = int(np.searchsorted(self.first, number, "right")) - 1
        return shard, (int(number) - int(self.first[shard])) * self.length

    @property
    def targets_per_window(self) -> int:
        return self.length

    @property
    def padded_vocab_size(self) -> int:
        """Number of embeddings of a model that reads the batches."""
        return self.shards.padded_vocab_size

    def batch(self, numbers, seed: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """Return what `read_windows` does; subclasses use `seed`."""
        return read_windows(self.shards, map(self.locate, numbers), self.length)


class MaskedWindows(Windows):
    """Windows for masked language modeling, with targets at a fraction `rate`."""

    def __init__(self, shards: Shards, length: int, rate: float):
        super().__init__(shards, length)
        assert shards.vocab_size < shards.padded_vocab_size  # room for <|mask|>
        self.rate = rate

    @property
    def targets_per_window(self) -> int:
        return masked_count(self.length, self.rate)

    def batch(self, numbers, seed: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        positions = map(self.locate, numbers)
        return read_masked_windows(self.shards, positions, self.length, self.rate, seed)


def read_windows(shards: Shards, positions, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of windows, two (n, length) int64 tensors.

    positions: n pairs (shard, offset of the first token). Raises InputError for a token outside the
    vocabulary.
    """
    rows = []
    for shard, offset in positions:
        row = shards.tokens[shard][offset : offset + length + 1].astype(np.int64)
        if row.max() >= shards.vocab_size:
            bad = int((row >= shards.vocab_size).argmax())
            where = f"{shards.tokens[shard].path}: token {row[bad]} at offset {offset + bad}"
            raise InputError(
                f"{where} is outside the vocabulary of {shards.vocab_size}: prepare the data again"
            )
        rows.append(row)
    windows = torch.from_numpy(np.stack(rows))
    return windows[:, :-1], windows[:, 1:]


def masked_count(length: int, rate: float) -> int:
    """Return how many of `length` tokens are masked, at least one."""
    return max(1, round(rate * length))


def read_masked_windows(
    shards: Shards, positions, length: int, rate: float, mask_seed: tuple[int, ...] = ()
) -> tuple[Tensor, ...]:
    """Return inputs (n, length), targets and masked positions (n, t), int64.

    Of t = masked_count(length, rate) random tokens per window, 80% become <|mask|> (the first id
    after the vocabulary), 10% a random token, 10% stay (Devlin et al. 2019, section 3.1). They
    depend only on mask_seed and the window's position. Other arguments and errors: `read_windows`.
    """
    positions = list(positions)
    tokens, _ = read_windows(shards, positions, length)
    inputs = tokens.numpy().copy()
    chosen_by_row = []
    for row, position in zip(inputs, positions, strict=True):
        generator = np.random.default_rng([*mask_seed, *position])
        chosen = np.sort(generator.permutation(length)[: masked_count(length, rate)])
        kinds = generator.random(len(chosen))
        random_tokens = generator.integers(shards.vocab_size, size=len(chosen))
        replaced = np.where(kinds < 0.9, random_tokens, row[chosen])  # from 0.9 on they stay
        row[chosen] = np.where(kinds < 0.8, shards.vocab_size, replaced)
        chosen_by_row.append(chosen)
    masked_positions = torch.from_numpy(np.stack(chosen_by_row))
    targets = tokens.gather(1, masked_positions)
    return torch.from_numpy(inputs), targets, masked_positions


class Sampler:
    """The order of training: a permutation of all windows per (seed, epoch).

    Its state is `epoch` and `index` in it. Raises InputError for an index that the data does not
    have.
    """

    def __init__(self, windows: int, seed: int, epoch: int = 0, index: int = 0):
        if index >= windows:
            raise InputError(
                f"the checkpoint resumes at window {index} of the data, which has {windows} "
                "windows: use an earlier checkpoint, or start a new run with --init_from"
            )
        self.windows = windows
        self.seed = seed
        self.epoch = epoch
        self.index = index
        self._shuffle()

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` window numbers, int64, across epochs."""
        taken = []
        while count:
            part = self.order[self.index : self.index + count]
            taken.append(part)
            count -= len(part)
            self.index += len(part)
            if self.index == self.windows:
                self.epoch += 1
                self.index = 0
                self._shuffle()
        return np.concatenate(taken)

    def _shuffle(self) -> None:
        generator = np.random.default_rng([self.seed, self.epoch])
        self.order = generator.permutation(self.windows)


def micro_batches(
    windows: Windows,
    sampler: Sampler,
    sequences: int,
    micro_batch: int,
    rank: int = 0,
    world_size: int = 1,
):
    """Yield the micro-batches of one rank, without end.

    A step takes the sampler's next `sequences` windows, each rank an equal, contiguous part. Yields
    (window numbers, *tensors of `windows.batch`, sampler state after the step as {"epoch": int,
    "index": int}).
    """
    per_rank = sequences // world_size
    while True:
        seed = (sampler.seed, sampler.epoch, sampler.index)
        numbers = sampler.take(sequences)[rank * per_rank : (rank + 1) * per_rank]
        state = {"epoch": sampler.epoch, "index": sampler.index}
        for start in range(0, per_rank, micro_batch):
            chunk = numbers[start : start + micro_batch]
            yield chunk, *windows.batch(chunk, seed), state


def prefetch(batches, device: torch.device, depth: int = 2) -> Generator[list[Any], None, None]:
    """Yield `batches` with tensors on `device`, read `depth` ahead by a thread."""

    def read_next():
        item = next(batches)
        if device.type == "cuda":
            # Inputs and targets are strided views; PyTorch copies only contiguous pinned memory
            # without waiting for the device.
            item = [x.contiguous().pin_memory() if torch.is_tensor(x) else x for x in item]
        return item

    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(read_next) for _ in range(depth))
        try:
            while True:
                item = waiting.popleft().result()
                waiting.append(thread.submit(read_next))
                yield [x.to(device, non_blocking=True) if torch.is_tensor(x) else x for x in item]
        finally:
            for future in waiting:
                future.cancel()


def rank_share(numbers: np.ndarray, rank: int, world_size: int) -> tuple[np.ndarray, int]:
    """Return a rank's part, padded to one length, and how many count."""
    size = -(-len(numbers) // world_size)
    own = numbers[rank * size : (rank + 1) * size]
    return np.append(own, np.repeat(numbers[:1], size - len(own))), len(own)


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Return min(count, total) evenly spaced numbers below total, int64."""
    return np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
