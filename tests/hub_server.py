"""Local server that answers as the Hugging Face hub does.

    with HubServer(folder) as hub:  # clients use HF_ENDPOINT=hub.endpoint
        hub.fail("GET", r"000_00001", status=503, times=2)

From a shell, `python tests/hub_server.py FOLDER --examples` writes tiny examples and serves them.
The folder holds one folder per repository, datasets/OWNER/NAME or models/OWNER/NAME. When files
change, the next request of the revision `main` gets a new commit; older commits can still be
requested by their hash.

The server speaks the part of the protocol that `datasets`, `huggingface_hub` and `transformers`
use. Everything else is answered by 404.
"""

import argparse
import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

# Files that the hub keeps in its large-file storage and serves from another host.
LARGE = (".parquet", ".bin", ".gz", ".pt", ".safetensors", ".zst")
REPOSITORY = r"(?P<name>[\w.-]+(?:/[\w.-]+)?)"
KIND = "(?P<kind>models|datasets)"
ROUTES = [
    (rf"/api/{KIND}/{REPOSITORY}(?:/revision/(?P<revision>[^/]+))?", "info"),
    (rf"/api/{KIND}/{REPOSITORY}/tree/(?P<revision>[^/]+)(?:/(?P<path>.*))?", "tree"),
    (rf"/(?:(?P<kind>datasets)/)?{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    (r"/api/resolve-cache/(?P<sha>\w+)/(?P<path>.+)", "small_file"),
    (r"/cdn/(?P<sha>\w+)", "large_file"),
]


@dataclass
class Fault:
    """What the server does wrong, at most `times` times, to requests that match.

    method, pattern: of the requests; the pattern is searched in "PATH?QUERY RANGE".
    status: answer with this status.
    cut_after: close the connection after this many bytes of the content; reset: abort it (RST).
    stall_after: send nothing more after this many bytes of the content, and keep the connection.
    """

    method: str
    pattern: str
    times: int = 1
    status: int | None = None
    cut_after: int | None = None
    reset: bool = False
    stall_after: int | None = None


class HubServer:
    """A hub on 127.0.0.1, and its storage of large files on 127.0.0.2, as a context manager.

    requests: "METHOD PATH RANGE" of every request so far.
    """

    def __init__(self, folder: Path, port: int = 0):
        self.folder = folder
        self.commits: dict[Path, dict[str, dict[str, bytes]]] = {}  # repository, hash, path
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.contents: dict[str, bytes] = {}  # of every file, by SHA-256
        self.lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        addresses = (("127.0.0.1", port), ("127.0.0.2", 0))
        self.servers = [_Server(address, handler) for address in addresses]
        addresses = [server.server_address for server in self.servers]
        self.endpoint, self.storage = ("http://{}:{}".format(*each) for each in addresses)

    def __enter__(self) -> "HubServer":
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def fail(self, method: str, pattern: str, **settings) -> Fault:
        self.faults.append(Fault(method, pattern, **settings))
        return self.faults[-1]

    def reset(self) -> None:
        self.faults.clear()
        self.requests.clear()

    def next_fault(self, method: str, target: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.pattern, target):
                    fault.times -= 1
                    return fault
        return None

    def update(self, repository: Path) -> str:
        """Read a repository's folder, add a commit if it is new, and return its hash."""
        files = {
            path.relative_to(repository).as_posix(): path.read_bytes()
            for path in sorted(repository.rglob("*"))
            if path.is_file()
        }
        listing = "".join(f"{path} {object_id(content)}\n" for path, content in files.items())
        sha = hashlib.sha1(listing.encode()).hexdigest()
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
        target = f"{self.path} {self.headers.get('Range', '')}".rstrip()
        self.hub.requests.append(f"{self.command} {target}")
        self.fault = self.hub.next_fault(self.command, target)
        if self.fault and self.fault.status:
            return self.send(self.fault.status, b"failed on purpose", {})
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        for pattern, action in ROUTES:
            if match := re.fullmatch(pattern, url.path):
                found = match.groupdict().items()
                return getattr(self, action)(**{k: unquote(value) for k, value in found if value})
        return self.send_problem(404, "", "Sorry, we can't find the page you are looking for.")

    do_HEAD = do_GET

    def info(self, name: str, kind: str, revision: str | None = None):
        if found := self.find_commit(kind, name, revision):
            files, sha = found
            siblings = [{"rfilename": path} for path in files]
            self.send_json({"id": name, "sha": sha, "siblings": siblings})

    def tree(self, name: str, kind: str, revision: str, path: str = ""):
        if found := self.find_commit(kind, name, revision):
            files, sha = found
            prefix = f"{path}/" if path else ""
            if not any(file.startswith(prefix) for file in files):
                return self.send_problem(404, "EntryNotFound", f"{path} does not exist on {sha}")
            recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
            entries = {}
            for file, content in files.items():
                if not file.startswith(prefix):
                    continue
                parts = file.removeprefix(prefix).split("/")
                for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                    folder = prefix + "/".join(parts[:depth])
                    entries[folder] = folder_entry(folder)
                if recursive or len(parts) == 1:
                    entries[file] = file_entry(file, content)
            return self.send_json(list(entries.values()))

    def resolve(self, name: str, revision: str, path: str, kind: str = "models"):
        if not (found := self.find_commit(kind, name, revision)):
            return
        files, sha = found
        content = files.get(path)
        headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if content is None:
            return self.send_problem(404, "EntryNotFound", "Entry not found", headers)
        stored = hashlib.sha256(content).hexdigest()
        self.hub.contents[stored] = content
        if path.endswith(LARGE):
            headers |= {
                "X-Linked-Size": str(len(content)),
                "X-Linked-Etag": f'"{stored}"',
                "Location": f"{self.hub.storage}/cdn/{stored}?file={path}",
            }
            return self.send(302, b"Found", headers)
        headers |= {
            "ETag": f'"{object_id(content)}"',
            "Location": f"/api/resolve-cache/{stored}/{path}?commit={sha}",
        }
        return self.send(307, b"Temporary Redirect", headers)

    def small_file(self, sha: str, path: str):
        content = self.hub.contents[sha]
        commit = self.query["commit"][0]
        self.send_content(content, {"ETag": f'"{object_id(content)}"', "X-Repo-Commit": commit})

    def large_file(self, sha: str):
        self.send_content(self.hub.contents[sha], {"ETag": f'"{sha}"'})

    def find_commit(self, kind: str, name: str, revision: str | None):
        """Return the files of a commit and its hash, or answer with an error and return None."""
        folder = self.hub.folder / kind
        if "/" not in name and (found := [*folder.glob(f"*/{name}")]):
            # The hub redirects the names of repositories that had no owner once, as gpt2.
            location = self.path.replace(f"/{name}", f"/{found[0].parent.name}/{name}", 1)
            self.send(307, b"Temporary Redirect", {"Location": location})
        elif "/" not in name or not (folder / name).is_dir():
            # Without a token, the hub does not reveal whether a repository exists.
            self.send_problem(401, "RepoNotFound", "Invalid username")
        else:
            newest = self.hub.update(folder / name)
            sha = newest if revision in (None, "main", "HEAD") else revision
            if files := self.hub.commits[folder / name].get(sha):
                return files, sha
            self.send_problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def send_problem(self, status: int, code: str, message: str, headers=None):
        headers = {**(headers or {}), "X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self.send(status, json.dumps({"error": message}).encode(), headers)

    def send_json(self, value):
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send_content(self, content: bytes, headers: dict[str, str]):
        """Send a file, or the range of it that is requested."""
        headers = {**headers, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not requested:
            return self.send(200, content, headers)
        start, size = int(requested[1]), len(content)
        end = min(int(requested[2] or size) + 1, size)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return self.send(206, content[start:end], headers)

    def send(self, status: int, content: bytes, headers: dict[str, str]):
        """Send a response; the fault of the request, if there is one, is applied here."""
        fault = self.fault or Fault(self.command, "")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = fault.cut_after if fault.cut_after is not None else fault.stall_after
        self.wfile.write(content[:stop])
        if fault.stall_after is not None:
            self.hub.closing.wait()
        if stop is not None:
            self.wfile.flush()
            if fault.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            self.close_connection = True

    def log_message(self, format, *args):
        pass


def object_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def file_entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "oid": object_id(content), "size": len(content), "path": path}
    if path.endswith(LARGE):
        sha = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 134}
    return entry


def folder_entry(path: str) -> dict:
    return {"type": "directory", "oid": object_id(path.encode()), "size": 0, "path": path}


def main():
    import hub_examples

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--examples", action="store_true")
    config = parser.parse_args()
    if config.examples:
        hub_examples.write_datasets(config.folder)
        hub_examples.write_gpt2(config.folder)
    with HubServer(config.folder, config.port) as hub:
        print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
