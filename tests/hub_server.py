"""Local server that answers as the Hugging Face hub does.

    with HubServer(folder) as hub:  # clients use HF_ENDPOINT=hub.endpoint
        hub.fail("000_00001", status=503)

The folder holds one folder per repository, datasets/OWNER/NAME or models/OWNER/NAME. When files
change, the next request of the revision `main` gets a new commit; older commits can still be
requested by their hash.

The server speaks the part of the protocol that `datasets`, `huggingface_hub` and `transformers`
use, without redirects.
"""

import hashlib
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROUTE = re.compile(
    r"(?:/api)?/(?:(?P<kind>models|datasets)/)?(?P<name>[\w.-]+(?:/[\w.-]+)?)"
    r"(?:/(?P<action>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?"
)


@dataclass
class Fault:
    """What the server does wrong to GET requests whose path has the pattern, while `active`.

    status: answer with this status. sent: send only this many bytes of the content, and close the
    connection, or keep it if `stalls`.
    """

    pattern: str
    status: int | None = None
    sent: int | None = None
    stalls: bool = False
    active: bool = True


class HubServer:
    """A hub on 127.0.0.1, as a context manager. requests: "METHOD PATH" of every request so far."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.commits: dict[Path, dict[str, dict[str, bytes]]] = {}  # repository, hash, path
        self.reset()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.endpoint = "http://{}:{}".format(*self.server.server_address)

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def reset(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []

    def fail(self, pattern: str, **settings) -> Fault:
        self.faults.append(Fault(pattern, **settings))
        return self.faults[-1]

    def update(self, repository: Path) -> str:
        """Read a repository's folder, add a commit if it is new, and return its hash."""
        files = {
            path.relative_to(repository).as_posix(): path.read_bytes()
            for path in sorted(repository.rglob("*"))
            if path.is_file()
        }
        sha = hashlib.sha1(repr(files).encode()).hexdigest()
        self.commits.setdefault(repository, {})[sha] = files
        return sha


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address):
        pass  # the client closed the connection


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"  # keeps connections, as the hub does
    disable_nagle_algorithm = True

    def do_GET(self):
        self.hub.requests.append(f"{self.command} {self.path}")
        found = [each for each in self.hub.faults if each.active and each.pattern in self.path]
        self.fault = found[0] if found and self.command == "GET" else Fault("")
        if self.fault.status:
            return self.send(self.fault.status, b"failed on purpose")
        route = ROUTE.fullmatch(unquote(urlsplit(self.path).path))
        folders = route and self.hub.folder.glob(f"{route['kind'] or 'models'}/*")
        repository = folders and next(
            (
                each
                for owner in folders
                for each in owner.iterdir()
                # Some old repositories have a name without their owner, as gpt2.
                if route["name"] in (f"{owner.name}/{each.name}", each.name)
            ),
            None,
        )
        if not repository:  # without a token, the hub does not reveal whether it exists
            return self.send_problem(401, "RepoNotFound")
        newest = self.hub.update(repository)
        sha = newest if route["revision"] in (None, "main", "HEAD") else route["revision"]
        files = self.hub.commits[repository].get(sha)
        if files is None:
            return self.send_problem(404, "RevisionNotFound")
        path = route["path"] or ""
        if route["action"] == "tree":
            return self.send_tree(files, path)
        if route["action"] == "resolve":
            return self.send_file(files.get(path), sha)
        siblings = [{"rfilename": path} for path in files]
        return self.send_json({"id": route["name"], "sha": sha, "siblings": siblings})

    do_HEAD = do_GET

    def send_tree(self, files: dict[str, bytes], folder: str):
        """Send the files and folders in a folder; with recursive=true also those below."""
        recursive = "recursive=true" in self.path.lower()
        entries = {}
        for file, content in files.items():
            parents = [each.as_posix() for each in Path(file).parents]
            if folder and folder not in parents:
                continue
            inner = parents[: parents.index(folder or ".")]  # the innermost is first
            for parent in inner if recursive else inner[-1:]:
                entries[parent] = {"type": "directory", "oid": parent, "path": parent}
            if recursive or not inner:
                size = {"size": len(content), "oid": object_id(content)}
                entries[file] = {"type": "file", "path": file, **size}
        if not entries:
            return self.send_problem(404, "EntryNotFound")
        return self.send_json(list(entries.values()))

    def send_file(self, content: bytes | None, sha: str):
        """Send a file, or the range of it that is requested."""
        headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if content is None:
            return self.send_problem(404, "EntryNotFound", headers)
        headers["ETag"] = f'"{object_id(content)}"'
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not requested:
            return self.send(200, content, headers)
        start, size = int(requested[1]), len(content)
        end = min(int(requested[2] or size) + 1, size)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return self.send(206, content[start:end], headers)

    def send_problem(self, status: int, code: str, headers=()):
        headers = {**dict(headers), "X-Error-Code": code, "X-Error-Message": code}
        self.send(status, b"", headers)

    def send_json(self, value):
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, content: bytes, headers=()):
        """Send a response, which the fault of the request cuts."""
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content[: self.fault.sent])
        if self.fault.stalls:
            self.hub.closing.wait()
        self.close_connection = self.fault.sent is not None

    def log_message(self, format, *args):
        pass


def object_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
