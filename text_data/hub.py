"""Access to the Hugging Face hub: pinned commits, one-line errors.

    data_set = PinnedDataset("HuggingFaceFW/fineweb-edu", "sample-10BT", None, remedy)
    folder = download_model("gpt2", ["config.json", "*.safetensors"], remedy)

The clients repeat failed requests and check the lengths of answers.
"""

import contextlib
import functools
import re
from pathlib import Path

from errors import InputError, one_line


def find_dataset(repository: str, revision: str | None, remedy: str):
    """Return the hub's description of a data set (sha, siblings)."""
    import huggingface_hub
    from huggingface_hub import constants

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT  # without one, this waits forever
    with input_errors(repository, remedy):
        return huggingface_hub.dataset_info(repository, revision=revision, timeout=timeout)


class PinnedDataset:
    """A data set at one commit of the hub, or in a folder of the same layout.

    revision: None: the newest. A resumed preparation sets `commit` to that of its first run.
    source: what identifies the data set in meta.json.
    """

    def __init__(self, repository: str, config: str, revision: str | None, remedy: str):
        self.repository = repository
        self.config = config
        self.revision = revision
        self.remedy = remedy
        self.name = f"{repository} ({config})"
        self.source = {"dataset": repository, "name": config}
        self.source |= {"revision": revision} if revision else {}

    @functools.cached_property
    def commit(self) -> str | None:
        """Commit on the hub; None for a folder. Raises as `find_dataset`."""
        if Path(self.repository).is_dir():
            return None
        return find_dataset(self.repository, self.revision, self.remedy).sha

    def files(self, split: str) -> list[str]:
        """Return paths or URLs of a split's files."""
        import datasets

        builder = datasets.load_dataset_builder(self.repository, self.config, revision=self.commit)
        splits = builder.config.data_files or {}
        if split not in splits:
            raise ValueError(f"no split {split}, only {' '.join(map(str, splits))}")
        if not type(builder).__module__.endswith((".json", ".parquet")):
            raise ValueError("its files are not json or parquet")
        return list(map(str, splits[split]))


def load_table(options: dict, revision: str | None = None):
    """Return a downloaded or cached datasets.Dataset, and its commit.

    options: of datasets.load_dataset. revision: a commit; None: the newest, or offline the cached
    one. Raises InputError if only another one is cached.
    """
    import datasets

    datasets.disable_progress_bars()
    table = datasets.load_dataset(**options, revision=revision)
    # The clients do not return the commit: it names the cached table's folder.
    names = {Path(file["filename"]).parent.name for file in table.cache_files}
    commits = [name for name in names if re.fullmatch(r"[0-9a-f]{40}", name)]
    commit = commits[0] if len(commits) == 1 else None
    if revision and commit != revision:
        raise InputError(
            f"{options['path']} is cached at the revision {commit}, not {revision}: connect to the "
            "network and run the same command"
        )
    return table, commit


def download_model(repository: str, patterns: list[str], remedy: str) -> Path:
    """Return the folder of a model's files, named after its commit."""
    import huggingface_hub

    with input_errors(repository, remedy):
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns))


@contextlib.contextmanager
def input_errors(name: str, remedy: str, is_local: bool = False):
    """Raise a one-line InputError for missing, corrupt or unreachable data.

    name: of the data. remedy: an alternative. is_local: the hub is not used.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # libraries of compressed files have types of their own
        if is_local:
            problem = f"{name} cannot be read ({one_line(error.__cause__ or error, 300)})"
            raise InputError(f"{problem}: {remedy}") from None
        while error.__cause__:  # the failed request
            error = error.__cause__
        raise InputError(
            f"{name} cannot be fetched from the hub ({one_line(error, 300)}): check its name, its "
            "revision and the network (`hf auth login` if it is private or gated), and run the "
            f"same command to resume; or {remedy}"
        ) from None
