"""Access to the Hugging Face hub: timeouts, pinned commits, one-line errors.

    data_set = PinnedDataset("HuggingFaceFW/fineweb-edu", "sample-10BT", None, remedy)
    folder = download_model("gpt2", ["config.json", "*.safetensors"], remedy)

The clients repeat failed requests and check the lengths of answers.
`configure` gives each request a timeout.
"""

import contextlib
import functools
import lzma
import re
import sys
import zlib
from pathlib import Path

from errors import InputError, one_line

READ_ERRORS = (ValueError, OSError, EOFError, RecursionError, lzma.LZMAError, zlib.error)
DECOMPRESSORS = {"backports", "compression", "lz4", "snappy"}  # packages of further errors


@functools.cache
def configure() -> None:
    """Set HF_HUB_DOWNLOAD_TIMEOUT for all requests."""
    import huggingface_hub
    from huggingface_hub import constants

    def set_timeout(request):
        # Some of the hub's functions pass None, which would wait forever.
        for name, seconds in request.extensions.get("timeout", {}).items():
            if seconds is None:
                request.extensions["timeout"][name] = constants.HF_HUB_DOWNLOAD_TIMEOUT

    default = huggingface_hub.get_session()
    hooks = {"request": [*default.event_hooks["request"], set_timeout]}
    huggingface_hub.set_client_factory(
        lambda: type(default)(event_hooks=hooks, follow_redirects=True, timeout=None)
    )


def http_library():
    """Return the HTTP library of huggingface_hub, httpx or httpx2."""
    import huggingface_hub

    return sys.modules[type(huggingface_hub.get_session()).__module__.partition(".")[0]]


def find_dataset(repository: str, revision: str | None, remedy: str):
    """Return the hub's description of a data set (sha, siblings)."""
    import huggingface_hub

    with input_errors(repository, remedy):
        return huggingface_hub.dataset_info(repository, revision=revision)


class PinnedDataset:
    """A data set at one commit of the hub, or in a folder of the same layout.

    revision: None: the newest. A resumed preparation sets `commit` to
    that of its first run. source: what identifies the data set in
    meta.json.
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

        builder = datasets.load_dataset_builder(
            self.repository, self.config, revision=self.commit
        )
        splits = builder.config.data_files or {}
        if split not in splits:
            raise ValueError(f"no split {split}, only {' '.join(map(str, splits))}")
        if not type(builder).__module__.endswith((".json", ".parquet")):
            raise ValueError("its files are not json or parquet")
        return list(map(str, splits[split]))


def load_table(options: dict, revision: str | None = None):
    """Return a downloaded or cached datasets.Dataset, and its commit.

    options: of datasets.load_dataset. revision: a commit; None: the
    newest, or offline the cached one. Raises InputError if only another
    one is cached.
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
def input_errors(name: str, remedy: str, is_local: bool = False, also: tuple = ()):
    """Raise a one-line InputError for missing, corrupt or unreachable data.

    name: of the data. remedy: an alternative. is_local: the hub is not used.
    also: kinds of exceptions besides READ_ERRORS and those of the clients.
    """
    if not is_local:
        configure()
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        from datasets.exceptions import DatasetsError
        from huggingface_hub.errors import EntryNotFoundError

        if not is_local and (failure := _find_failure(error)):
            raise InputError(
                f"{name} cannot be fetched from the hub ({_reason(failure)}): check its name, its "
                "revision and the network (`hf auth login` if it is private or gated), and run the "
                f"same command to resume; or {remedy}"
            ) from None
        of_clients = DatasetsError, EntryNotFoundError, http_library().HTTPError
        is_packed = type(error).__module__.partition(".")[0] in DECOMPRESSORS
        if not (is_packed or isinstance(error, (*READ_ERRORS, *also, *of_clients))):
            raise
        cause = _reason(error.__cause__ or error)
        raise InputError(f"{name} cannot be read ({cause}): {remedy}") from None


def _find_failure(error: BaseException | None) -> BaseException | None:
    """Return the failed request at the root of an error, or None."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import errors

    kinds = errors.HfHubHTTPError, errors.HFValidationError, DatasetNotFoundError
    kinds += http_library().HTTPError, ConnectionError
    failure = None
    while error is not None:
        if isinstance(error, kinds) and not isinstance(error, errors.EntryNotFoundError):
            failure = error
        error = error.__cause__ or error.__context__
    return failure


def _reason(error: BaseException) -> str:
    """Return a server's answer, or an error's text on one line."""
    if response := getattr(error, "response", None):
        return f"{response.status_code} {response.reason_phrase}".strip()
    return one_line(error, 300)
