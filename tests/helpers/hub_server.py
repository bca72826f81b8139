"""A local server with the part of the Hub's API that huggingface_hub uses, with optional faults."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.helpers.pico import contents

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """A model repository."""

    files: dict[str, bytes]  # at every revision it has
    revisions: tuple[str, ...] = ("main", SHA)  # names of its only commit
    gated: bool = False
    is_cut: bool = False  # whether downloads of weights are cut off


@dataclass
class Fault:
    """A wrong response; ``{authorization}`` in it is replaced with the request's header."""

    pattern: str  # of the requests that get this response, such as ``HEAD .*config.json``
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    times: int | None = None  # how many requests get it; None: all of them


@dataclass
class Hub:
    """The server's repositories, faults, and a log of its requests."""

    endpoint: str = ""
    # Names of data sets have the prefix ``datasets/``.
    repos: dict[str, Repo] = field(default_factory=dict)
    # The first one whose pattern matches a request is used.
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # method and path
    tokens: list[str] = field(default_factory=list)  # Authorization header of each request

    def add(self, repo_id: str, folder: Path, **options: object) -> Repo:
        """Publish a folder."""
        self.repos[repo_id] = Repo(contents(folder), **options)  # type: ignore[arg-type]
        return self.repos[repo_id]

    def downloaded(self) -> set[str]:
        """Return the names of all requested files."""
        return {
            line.split("/resolve/")[1].split("/", 1)[1]
            for line in self.requests
            if line.startswith("GET") and "/resolve/" in line
        }


def git_hash(data: bytes) -> str:
    """Return the git object id of a file, which is also the Hub's ETag of small files."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_fields(name: str, data: bytes) -> dict[str, object]:
    """Return the Hub's metadata of an LFS file; an empty dict for other files."""
    if not name.endswith((".safetensors", ".bin")):
        return {}
    return {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}


class HubServer(ThreadingHTTPServer):
    """Serves a Hub on a free local port."""

    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.hub = hub
        hub.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class HubHandler(BaseHTTPRequestHandler):
    """Answers one connection: with a fault, or with files of a repository."""

    server: HubServer
    protocol_version = "HTTP/1.1"
    # Otherwise a body waits 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path).strip("/")
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{self.command} {path}"
        hub.requests.append(request)
        hub.tokens.append(self.headers.get("Authorization", ""))
        for fault in hub.faults:
            if fault.times != 0 and re.search(fault.pattern, request):
                if fault.times is not None:
                    fault.times -= 1
                self.send_fault(fault)
                return
        self.send_from_repo(path)

    def send_fault(self, fault: Fault) -> None:
        token = self.headers.get("Authorization", "")
        body = fault.body.replace("{authorization}", token)
        headers = {
            name: value.replace("{authorization}", token) for name, value in fault.headers.items()
        }
        self.reply(body.encode(), headers, status=fault.status)

    def send_from_repo(self, path: str) -> None:
        """Send a file, a list of files, or the error of a missing or gated repository."""
        hub = self.server.hub
        is_api = path.startswith(("api/models/", "api/datasets/"))
        rest = path.removeprefix("api/models/").removeprefix("api/")
        repo_id = next((name for name in hub.repos if f"{rest}/".startswith(f"{name}/")), None)
        if repo_id is None:
            self.fail(404, "RepoNotFound", "Repository not found")
            return
        repo = hub.repos[repo_id]
        parts = rest.removeprefix(repo_id).strip("/").split("/", 2)
        if len(parts) == 1:
            parts = ["revision", "main"]
        if repo.gated:
            self.fail(403, "GatedRepo", f"Access to model {repo_id} is restricted")
        elif parts[1] not in repo.revisions:
            self.fail(404, "RevisionNotFound", "Invalid rev id")
        elif is_api:
            self.send_json(description(repo_id, repo, parts, self.body))
        else:
            self.send_file(repo, parts[2])

    def send_file(self, repo: Repo, name: str) -> None:
        if name not in repo.files:
            self.fail(404, "EntryNotFound", "Entry not found")
            return
        data = repo.files[name]
        etag = hashlib.sha256(data).hexdigest() if lfs_fields(name, data) else git_hash(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        start = 0
        end = len(data)
        if self.has_body and "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start = int(first)
            end = min(int(last or len(data)) + 1, len(data))
        status = 200
        if start or end < len(data):
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        is_cut = self.has_body and repo.is_cut and name.endswith(".safetensors")
        self.reply(data[start:end], headers, status=status, is_cut=is_cut)

    def fail(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self.send_json({"error": message}, status, headers)

    def send_json(
        self, content: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.reply(json.dumps(content).encode(), headers or {}, status=status)

    @property
    def has_body(self) -> bool:
        """Whether the response has a body."""
        return self.command != "HEAD"

    def reply(
        self, body: bytes, headers: Mapping[str, str], *, status: int, is_cut: bool = False
    ) -> None:
        """Send a response; if it is cut, close the connection after half of the body."""
        self.send_response(status)
        length = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        for name, value in (length | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.has_body:
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
            self.wfile.flush()
        if is_cut:
            self.close_connection = True
            self.connection.close()


def description(repo_id: str, repo: Repo, parts: list[str], body: bytes) -> object:
    """Return the metadata of a repository, of a folder in it, or of some of its paths."""
    entries = [*directory_entries(repo), *file_entries(repo)]
    if parts[0] == "tree":
        folder = "".join(parts[2:])
        return [entry for entry in entries if str(entry["path"]).startswith(folder)]
    if parts[0] == "paths-info":
        requested = parse_qs(body.decode())["paths"]
        return [entry for entry in entries if entry["path"] in requested]
    name = repo_id.removeprefix("datasets/")
    return {
        "id": name,
        "modelId": name,
        "sha": SHA,
        "siblings": [{"rfilename": path} for path in sorted(repo.files)],
        "tags": [],
        "private": False,
    }


def file_entries(repo: Repo) -> list[dict[str, object]]:
    """Return the Hub's metadata of the files of a repository."""
    entries = []
    for name, data in sorted(repo.files.items()):
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
        entries.append(entry | lfs_fields(name, data))
    return entries


def directory_entries(repo: Repo) -> list[dict[str, object]]:
    """Return the Hub's metadata of the folders of a repository."""
    folders = {str(folder) for name in repo.files for folder in PurePosixPath(name).parents}
    return [{"type": "directory", "path": name, "oid": SHA} for name in sorted(folders - {"."})]


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a Hub on a free local port."""
    hub = Hub()
    server = HubServer(hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def use_hub(endpoint: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make huggingface_hub, in this process, use a Hub and a cache folder."""
    from huggingface_hub import constants

    template = re.sub("^https?://[^/]+", endpoint, constants.HUGGINGFACE_CO_URL_TEMPLATE)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
