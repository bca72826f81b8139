"""A local server with the part of the Hub's API that huggingface_hub uses, with optional faults."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
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
    """A wrong response."""

    pattern: str  # of the requests that get this response, such as ``HEAD .*config.json``
    status: int = 200
    headers: dict[str, str] = field(
        default_factory=dict
    )  # ``{authorization}`` is replaced with the request's header
    body: str = ""  # with the same replacement


@dataclass
class Hub:
    """The server's repositories, faults, and a log of its requests."""

    endpoint: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)  # datasets have the prefix ``datasets/``
    faults: list[Fault] = field(
        default_factory=list
    )  # the first one whose pattern matches a request is used
    requests: list[str] = field(default_factory=list)  # method and path
    tokens: list[str] = field(default_factory=list)  # Authorization header of each request
    large: dict[str, bytes] = field(
        default_factory=dict
    )  # uploaded files that are not yet in a commit, by SHA-256

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


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a Hub on a free local port."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = (
            True  # otherwise a body waits 40 ms for the acknowledgement of its headers
        )

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_POST(self) -> None:
            self.answer(with_body=True)

        def do_PUT(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.append(self.headers.get("Authorization", ""))
            fault = next(
                (fault for fault in hub.faults if re.search(fault.pattern, hub.requests[-1])), None
            )
            if fault is not None:
                token = self.headers.get("Authorization", "")
                headers = {
                    name: value.replace("{authorization}", token)
                    for name, value in fault.headers.items()
                }
                self.reply(
                    fault.status,
                    fault.body.replace("{authorization}", token).encode(),
                    headers,
                    with_body,
                )
                return
            if (upload := self.handle_upload(path)) is not None:
                status, answer = upload
                self.reply(status, json.dumps(answer).encode(), {}, with_body)
                return
            is_api = path.startswith(("api/models/", "api/datasets/"))
            rest = path.removeprefix("api/models/").removeprefix("api/")
            repo_id = next(
                (name for name in hub.repos if rest == name or rest.startswith(f"{name}/")), None
            )
            if repo_id is None:
                self.fail(404, "RepoNotFound", "Repository not found")
                return
            repo = hub.repos[repo_id]
            parts = rest.removeprefix(repo_id).strip("/").split("/", 2)
            parts = parts if len(parts) > 1 else ["revision", "main"]
            if repo.gated:
                self.fail(403, "GatedRepo", f"Access to model {repo_id} is restricted")
            elif parts[1] not in repo.revisions:
                self.fail(404, "RevisionNotFound", "Invalid rev id")
            elif is_api:
                self.describe(repo_id, repo, parts, with_body)
            else:
                self.send_file(repo, parts[2], with_body)

        def handle_upload(self, path: str) -> tuple[int, dict[str, object]] | None:
            """Handle a request of an upload and return status and response; None for other
            requests.
            """
            repo_id = next(
                (name for name in hub.repos if f"{name}/" in path or f"{name}.git/" in path), ""
            )
            match (
                path.removeprefix(f"api/models/{repo_id}/")
                .removeprefix(f"{repo_id}.git/")
                .split("/")
            ):
                case ["api", "repos", "create"]:
                    requested = json.loads(self.body)
                    name = f"{requested['organization'] or 'me'}/{requested['name']}"
                    status = 409 if name in hub.repos else 200
                    hub.repos.setdefault(name, Repo({}))
                    return status, {"url": f"{hub.endpoint}/{name}"}
                case ["api", "validate-yaml"]:
                    return 200, {"errors": [], "warnings": []}
                case ["preupload", "main"]:
                    files = [
                        {"path": file["path"], "shouldIgnore": False}
                        | {"uploadMode": "lfs" if lfs_fields(file["path"], b"") else "regular"}
                        for file in json.loads(self.body)["files"]
                    ]
                    return 200, {"files": files}
                case ["info", "lfs", "objects", "batch"]:
                    href = f"{hub.endpoint}/large"
                    objects = [
                        requested | {"actions": {"upload": {"href": f"{href}/{requested['oid']}"}}}
                        for requested in json.loads(self.body)["objects"]
                    ]
                    return 200, {"objects": objects, "transfer": "basic"}
                case ["large", oid]:
                    hub.large[oid] = self.body
                    return 200, {}
                case ["commit", "main"]:
                    for line in map(json.loads, self.body.splitlines()):
                        value = line["value"]
                        if line["key"] == "file":
                            hub.repos[repo_id].files[value["path"]] = base64.b64decode(
                                value["content"]
                            )
                        elif line["key"] == "lfsFile":
                            hub.repos[repo_id].files[value["path"]] = hub.large[value["oid"]]
                    return 200, {
                        "commitUrl": f"{hub.endpoint}/{repo_id}/commit/{SHA}",
                        "commitOid": SHA,
                    }
            return None

        def describe(self, repo_id: str, repo: Repo, parts: list[str], with_body: bool) -> None:
            tree: list[dict[str, object]] = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(data),
                    "oid": git_hash(data),
                    **lfs_fields(name, data),
                }
                for name, data in sorted(repo.files.items())
            ]
            folders = {
                str(folder) for name in repo.files for folder in PurePosixPath(name).parents
            } - {"."}
            directories: list[dict[str, object]] = [
                {"type": "directory", "path": name, "oid": SHA} for name in sorted(folders)
            ]
            siblings = [{"rfilename": entry["path"]} for entry in tree]
            name = repo_id.removeprefix("datasets/")
            info = {
                "id": name,
                "modelId": name,
                "sha": SHA,
                "siblings": siblings,
                "tags": [],
                "private": False,
            }
            answer: object = info
            if parts[0] == "tree":
                answer = [
                    entry
                    for entry in directories + tree
                    if str(entry["path"]).startswith("".join(parts[2:]))
                ]
            elif parts[0] == "paths-info":
                requested = parse_qs(self.body.decode())["paths"]
                answer = [entry for entry in directories + tree if entry["path"] in requested]
            self.reply(200, json.dumps(answer).encode(), {}, with_body)

        def send_file(self, repo: Repo, name: str, with_body: bool) -> None:
            if name not in repo.files:
                self.fail(404, "EntryNotFound", "Entry not found")
                return
            data = repo.files[name]
            start = 0
            if with_body and (requested := self.headers.get("Range")):
                start = int(requested.removeprefix("bytes=").split("-")[0])
            etag = hashlib.sha256(data).hexdigest() if lfs_fields(name, data) else git_hash(data)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            is_cut = with_body and repo.is_cut and name.endswith(".safetensors")
            self.reply(206 if start else 200, data[start:], headers, with_body, is_cut=is_cut)

        def fail(self, status: int, code: str, message: str) -> None:
            headers = {"X-Error-Code": code, "X-Error-Message": message}
            self.reply(
                status, json.dumps({"error": message}).encode(), headers, self.command == "GET"
            )

        def reply(
            self,
            status: int,
            body: bytes,
            headers: dict[str, str],
            with_body: bool,
            is_cut: bool = False,
        ) -> None:
            self.send_response(status)
            length = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
            for name, value in (length | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body[: len(body) // 2] if is_cut else body)
                self.wfile.flush()
            if is_cut:
                self.close_connection = True
                self.connection.close()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
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
