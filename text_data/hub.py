"""Access to the Hugging Face hub: timeouts, retries, pinned commits and errors of one line.

    load_options = pin_dataset(meta.content, "HuggingFaceFW/fineweb-edu", None, remedy)
    rows = with_retries(lambda: datasets.load_dataset(**load_options), "fineweb-edu")
    paths, commit = download_model("gpt2", lambda names: ["config.json", ...], remedy)

While a file is read or downloaded, the clients of Hugging Face repeat failed requests by
themselves. They do not repeat the requests before that (which commit, which files) nor, in a
download, server errors: `with_retries` does. `configure` gives every request a timeout, and refuses
answers that are shorter than announced by the hub, which the clients would take as the whole file.
"""

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from errors import InputError

WAITS = (1, 2, 4, 8, 16)  # seconds before each repetition
# Requests are not repeated later than this many seconds after the first.
RETRY_SECONDS = 600
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)  # HTTP status codes

T = TypeVar("T")


@functools.cache
def configure() -> None:
    """Set the timeout of all requests, and check the length of all answers.

    The timeout is that of HF_HUB_DOWNLOAD_TIMEOUT, 10 seconds without it, for every part of an
    answer.
    """
    import huggingface_hub
    from huggingface_hub import constants

    def set_timeout(request):
        # Some of the hub's functions pass None, which would wait forever.
        for name, seconds in request.extensions.get("timeout", {}).items():
            if seconds is None:
                request.extensions["timeout"][name] = constants.HF_HUB_DOWNLOAD_TIMEOUT

    def add_hooks(client):
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks.get("request", []), set_timeout],
            "response": [*hooks.get("response", []), _LengthCheck()],
        }
        return client

    try:
        # Not public: requirements.txt pins the version.
        from huggingface_hub.utils._http import default_client_factory
    except ImportError:
        add_hooks(huggingface_hub.get_session())  # only the current client, not a later one
    else:
        huggingface_hub.set_client_factory(lambda: add_hooks(default_client_factory()))


class _LengthCheck:
    """Raise the HTTP client's error for a broken connection if an answer has the wrong length.

    The clients repeat the request then. Without the check, an answer that is too short looks like
    the end of the file.
    """

    def __init__(self):
        self.error = http_library().RemoteProtocolError
        self.sizes = {}  # of large files, by the URL in the storage that the hub redirects to

    def __call__(self, response) -> None:
        request = response.request
        if "X-Linked-Size" in response.headers and response.has_redirect_location:
            location = str(request.url.join(response.headers["Location"]))
            self.sizes[location] = int(response.headers["X-Linked-Size"])
        if request.method != "GET" or "Content-Encoding" in response.headers:
            return
        size = self.sizes.pop(str(request.url), None)
        length = int(response.headers.get("Content-Length", -1))
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)?", request.headers.get("Range", ""))
        expected = length
        if response.status_code == 200 and requested and requested[2] and requested[1] != "0":
            raise self.error("the server ignored the requested range", request=request)
        if response.status_code == 200 and size is not None:
            expected = size
        elif response.status_code == 206 and requested:
            content_range = response.headers.get("Content-Range", "")
            sent = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range)
            if not sent:
                raise self.error("the server did not state the sent range", request=request)
            last = int(sent[2])
            if sent[3] != "*":  # *: the server does not state the size of the file
                last = int(sent[3]) - 1
                if requested[2]:
                    last = min(last, int(requested[2]))
            if (sent[1], sent[2]) != (requested[1], str(last)):
                raise self.error("the server sent another range", request=request)
            expected = last + 1 - int(requested[1])
        if length not in (-1, expected):
            raise self.error(f"{length} bytes announced, not {expected}", request=request)


def with_retries(call: Callable[[], T], name: str) -> T:
    """Return call(), repeated after temporary errors of the hub.

    name: what is fetched, for messages. The waits are WAITS, or longer where the hub asks for it.
    """
    configure()
    start = time.monotonic()
    waits = iter(WAITS)
    while True:
        try:
            return call()
        except Exception as error:
            failure = _find_failure(error)
            wait = next(waits, None)
            seconds = max(wait or 0, _retry_after(failure))
            late = time.monotonic() - start + seconds > RETRY_SECONDS
            if failure is None or wait is None or late or not _is_temporary(failure):
                raise
            reason = _reason(failure)
        print(f"{name}: {reason}; next attempt in {seconds} s", file=sys.stderr)
        time.sleep(seconds)


def find_dataset(repository: str, revision: str | None, remedy: str):
    """Return the hub's description of a data set (sha, siblings) at a revision; None: the newest.

    Raises InputError with `remedy` if there is none, or if the hub cannot be reached.
    """
    import huggingface_hub

    with input_errors(repository, remedy):
        return with_retries(
            lambda: huggingface_hub.dataset_info(repository, revision=revision), repository
        )


def pin_dataset(content: dict, repository: str, revision: str | None, remedy: str) -> dict:
    """Return the arguments of load_dataset for a data set at one commit.

    content: of meta.json. Its "revision" is the commit; a new preparation, which has none, gets
    the commit that `revision` names, or the newest. In offline mode, the data set must be in the
    hub's cache as a whole. A local folder has no commit.
    Raises InputError with `remedy` if it is not, or if the hub has no such commit.
    """
    if Path(repository).is_dir():
        return {"path": repository}
    revision = content.get("revision") or revision
    if is_offline():
        folder = _cached_dataset(repository, revision, remedy)
        content["revision"] = folder.name
        return {"path": str(folder)}
    content["revision"] = find_dataset(repository, revision, remedy).sha
    return {"path": repository, "revision": content["revision"]}


def _cached_dataset(repository: str, revision: str | None, remedy: str) -> Path:
    """Return the folder of a data set that `hf download` has downloaded; its name is the commit."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(
            repository, repo_type="dataset", revision=revision, local_files_only=True
        )
    except LocalEntryNotFoundError:
        folder = None
    # The list of all files, without which the client does not notice that some are missing.
    if not folder or not (Path(folder).parents[1] / "trees" / f"{Path(folder).name}.json").exists():
        raise InputError(_offline_message(repository, remedy))
    return Path(folder)


def load_table(options: dict, revision: str | None = None):
    """Return a downloaded or cached table of the hub, a datasets.Dataset, and its commit.

    options: the arguments of datasets.load_dataset. revision: a commit; None: the newest, or the
    cached one if the hub cannot be reached.
    Raises InputError if the table of another commit is cached and the hub cannot be reached.
    """
    import datasets

    datasets.disable_progress_bars()
    pinned = {**options, "revision": revision} if revision else options
    table = with_retries(lambda: datasets.load_dataset(**pinned), options["path"])
    # The clients do not return the commit; the folder of the cached table has its name.
    names = {Path(file["filename"]).parent.name for file in table.cache_files}
    commits = [name for name in names if re.fullmatch(r"[0-9a-f]{40}", name)]
    commit = commits[0] if len(commits) == 1 else None
    if revision and commit != revision:
        raise InputError(
            f"{options['path']} is cached at the revision {commit}, not {revision}: connect to the "
            "network and run the same command"
        )
    return table, commit


def download_model(
    repository: str, choose: Callable[[list[str]], list[str]], remedy: str
) -> tuple[list[str], str]:
    """Return the local paths of a model's files and their commit; download what is not cached.

    choose: returns the files to download, given all. In offline mode, and if the hub cannot be
    reached, the cached files are used.
    Raises InputError with `remedy` if the model cannot be downloaded and is not cached.
    """
    import huggingface_hub

    with input_errors(repository, remedy):
        # The newest commit, or the newest known one if the hub cannot be reached.
        commit = with_retries(
            lambda: huggingface_hub.resolve_revision(repository), repository
        ).resolved
        try:
            names = with_retries(
                lambda: huggingface_hub.list_repo_files(repository, revision=commit), repository
            )
        except Exception as error:
            if not _is_unreachable(_find_failure(error)) or not _cached_files(repository, commit):
                raise
            names = _cached_files(repository, commit)
        paths = []
        for name in choose(names):
            download = functools.partial(
                huggingface_hub.hf_hub_download, repository, name, revision=commit
            )
            paths.append(with_retries(download, f"{repository}: {name}"))
    return paths, commit


def _cached_files(repository: str, commit: str) -> list[str]:
    """Return the names of a model's cached files at a commit."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=commit, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return []
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in files]


@contextlib.contextmanager
def input_errors(name: str, remedy: str):
    """Raise an InputError of one line for what the hub's clients raise inside the block."""
    configure()
    try:
        yield
    except Exception as error:
        if message := explain(error, name, remedy):
            raise InputError(message) from None
        raise


def is_offline() -> bool:
    from datasets import config
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE or config.HF_HUB_OFFLINE)


def explain(error: BaseException, name: str, remedy: str) -> str | None:
    """Return what a failed access to the hub means and what to do; None for other errors.

    name: of what was accessed. remedy: an alternative to the hub.
    """
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import errors

    if isinstance(error, InputError):
        return None
    failure = _find_failure(error)
    if isinstance(error, errors.HFValidationError):
        return f"{name} is neither a local path nor a name on the hub: check it, or {remedy}"
    if isinstance(error, DatasetNotFoundError) and "gated" in str(error):
        return _gated_message(name, "gated", remedy)
    if is_offline() and isinstance(error, OSError | ValueError):
        return _offline_message(name, remedy)
    if failure is None:
        return None
    reason = _reason(failure)
    status = _status(failure)
    if isinstance(failure, errors.OfflineModeIsEnabled):
        return _offline_message(name, remedy)
    if isinstance(failure, errors.GatedRepoError) or status == 403:
        return _gated_message(name, reason, remedy)
    if isinstance(failure, errors.RepositoryNotFoundError) or status == 401:
        return (
            f"{name} does not exist on the hub, or is private ({reason}): check the name, or log "
            f"in with `hf auth login`; or {remedy}"
        )
    if isinstance(failure, errors.RevisionNotFoundError):
        return f"{name} does not have this revision on the hub ({reason}): use another, or {remedy}"
    if status == 429:
        return (
            f"{name} cannot be fetched from the hub ({reason}): wait some minutes, or log in with "
            f"`hf auth login` for a higher limit, and run the same command to resume; or {remedy}"
        )
    if status:
        return (
            f"{name} cannot be fetched from the hub ({reason}): run the same command later to "
            f"resume; or {remedy}"
        )
    return (
        f"{name} cannot be fetched from the hub ({reason}): connect to the network and run the "
        f"same command to resume; or {remedy}"
    )


def _gated_message(name: str, reason: str, remedy: str) -> str:
    return (
        f"{name} cannot be accessed on the hub ({reason}): request access on its page, log in with "
        f"`hf auth login`, and run the same command; or {remedy}"
    )


def _offline_message(name: str, remedy: str) -> str:
    return (
        f"{name} is not in the cache, or not completely, and offline mode is on: unset "
        f"HF_HUB_OFFLINE and HF_DATASETS_OFFLINE and run the same command; or {remedy}"
    )


def _find_failure(error: BaseException | None) -> BaseException | None:
    """Return the failed request among an error and its causes, or None."""
    from huggingface_hub import errors

    requests = []
    others = []
    while error is not None:
        if isinstance(error, errors.OfflineModeIsEnabled):
            return error
        if isinstance(error, errors.HfHubHTTPError):
            if not isinstance(error, errors.EntryNotFoundError):
                return error
        elif isinstance(error, http_library().HTTPError) or _is_wrong_length(error):
            requests.append(error)
        elif isinstance(error, ConnectionError):
            others.append(error)
        error = error.__cause__ or error.__context__
    return next(iter(requests[-1:] + others), None)


def _is_wrong_length(error: BaseException) -> bool:
    """Return whether huggingface_hub raised an error for a download of the wrong length."""
    return isinstance(error, OSError) and "Consistency check failed" in str(error)


def http_library():
    """Return the HTTP library of huggingface_hub: httpx or httpx2."""
    # Which of the two huggingface_hub uses depends on its version.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    return sys.modules[HTTPError.__module__.partition(".")[0]]


def _status(failure: BaseException) -> int | None:
    """Return the HTTP status code of a failed request, if it was answered."""
    response = getattr(failure, "response", None)
    return None if response is None else response.status_code


def _is_unreachable(failure: BaseException | None) -> bool:
    """Return whether the hub did not answer, or cannot answer at the moment."""
    return failure is not None and _status(failure) in (None, *TEMPORARY)


def _is_temporary(failure: BaseException | None) -> bool:
    """Return whether a repetition may succeed. Without a network connection, it will not.

    `datasets` raises the built-in ConnectionError after it has repeated a request for long.
    """
    if failure is None:
        return False
    library = http_library()
    if isinstance(failure, library.TransportError):
        return not isinstance(failure, library.ConnectError)
    return _status(failure) in TEMPORARY or _is_wrong_length(failure)


def _retry_after(failure: BaseException | None) -> int:
    """Return the seconds that the hub asks to wait, or 0."""
    response = getattr(failure, "response", None)
    seconds = "" if response is None else response.headers.get("Retry-After", "")
    return int(seconds) if seconds.isdigit() else 0


def _reason(failure: BaseException) -> str:
    response = getattr(failure, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason_phrase}".strip()
    return " ".join(str(failure).split())[:300] or type(failure).__name__
