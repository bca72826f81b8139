"""The Hub that fails, lies, or tells what it should not: the real client, and a server on loopback."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctxextend import SourceError
from ctxextend.checkpoints import redaction
from ctxextend.checkpoints.redaction import redacted
from ctxextend.checkpoints.source import resolve_source
from ctxextend.cli.app import app
from tests import pico
from tests.hub_server import SHA, Fault, Hub, Repo, ask_from_here, git_hash, serve

TOKEN = "hf_SecretSecretSecretSecretSecretSecr"
PASSWORD = "open-sesame"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pico.make(tmp_path_factory.mktemp("published") / "model", "gpt2").folder


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client wanted to sleep; it does not."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the client logs, as its own handler would write it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("huggingface_hub").addHandler(handler)
    yield lines
    logging.getLogger("huggingface_hub").removeHandler(handler)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serve() as hub:
        ask_from_here(hub.endpoint, tmp_path / "cache", monkeypatch)
        yield hub


@pytest.fixture
def repo(hub: Hub, folder: Path) -> Repo:
    return hub.add("owner/model", folder)


def refused(reference: str = "owner/model", **options: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        resolve_source(reference, **options)
    return caught.value


def fetched(repo: Repo) -> None:
    """The model is fetched, and is what was published."""
    found = resolve_source("owner/model").folder
    assert {name: (found / name).read_bytes() for name in repo.files} == repo.files


def blobs(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").glob("models--*/blobs/*")}


# ---- what breaks off


def test_resolve_source_goes_on_where_the_connection_was_cut(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    repo.cut = 1
    fetched(repo)
    (_, first, came), (_, second, rest) = (each for each in hub.sent if each[0] == WEIGHTS)
    assert (first, second) == (0, came // 1000 * 1000)
    assert second > 0
    assert second + rest == len(repo.files[WEIGHTS])


def test_resolve_source_after_a_kill_fetches_nothing_twice_that_came_whole(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    hub.faults.append(Fault(f"GET .*{WEIGHTS}", status=0))
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", "from ctxextend.checkpoints.source import *; resolve_source('owner/model')"]
    process = subprocess.Popen(command, env=os.environ | environment)
    whole = len(repo.files) - 1
    deadline = time.monotonic() + 60
    while len([name for name in blobs(tmp_path) if "." not in name]) < whole or len(blobs(tmp_path)) == whole:
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(name.endswith(".incomplete") for name in blobs(tmp_path))
    hub.faults.clear()
    hub.sent.clear()
    fetched(repo)
    assert [name for name, *_ in hub.sent] == [WEIGHTS]
    assert not any(name.endswith(".incomplete") for name in blobs(tmp_path))


# ---- what is not what it should be

LOGIN_PAGE = b"<!DOCTYPE html><title>Welcome to the hotel</title>" * 20


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("what", ["other", "shorter", "longer", "a page"])
def test_resolve_source_notices_what_is_not_what_the_hub_states(
    repo: Repo, tmp_path: Path, name: str, what: str
) -> None:
    true = repo.files[name]
    other = bytes([true[0] ^ 1]) + true[1:]
    repo.sent[name] = {"other": other, "shorter": true[:-1], "longer": true + b" ", "a page": LOGIN_PAGE}[what]
    error = refused()
    if what == "other":
        assert f"{name} of owner/model did not arrive as the Hub has it" in error.message
        assert "removed from the Hub's cache" in str(error.hint)
    else:
        assert f"should be of size {len(true)} but has size {len(repo.sent[name])}" in error.message
    assert "run the same command again" in str(error.hint).lower()
    assert not {hashlib.sha256(true).hexdigest(), git_hash(true)} & blobs(tmp_path)
    repo.sent.clear()
    fetched(repo)


def test_resolve_source_looks_at_what_came_whole_before_the_rest_failed(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    repo.sent["config.json"] = repo.files["config.json"].swapcase()
    hub.faults.append(Fault(f"GET .*{WEIGHTS}", status=500))
    assert "config.json of owner/model did not arrive" in refused().message
    hub.faults.clear()
    repo.sent.clear()
    fetched(repo)


def test_resolve_source_takes_the_hash_of_a_mirror(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hub_server.git_hash", lambda data: hashlib.sha1(data).hexdigest())
    fetched(repo)


# ---- what is answered in its place

ECHO = {"X-Error-Message": "You came with {authorization}"}
API, HEAD, GET = "GET api/models", "HEAD .*/resolve/", f"GET .*/resolve/.*{WEIGHTS}"
ANSWERS = [
    (401, {}, "does not accept the token that it was sent (HTTP 401)", "hf auth login"),
    (401, {"X-Error-Code": "RepoNotFound"}, "no model owner/model on the Hub", "hf auth login"),
    (403, {}, "refuses it to this account or token (HTTP 403)", "huggingface.co/settings/tokens"),
    (403, {"X-Error-Code": "GatedRepo"}, "Access to owner/model on the Hub is restricted", "Ask for access"),
    (404, {"X-Error-Code": "RepoNotFound"}, "no model owner/model on the Hub", "Check the spelling"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "has no revision", "Check its branches and tags"),
    (404, {}, "has nothing at that address (HTTP 404)", "HF_ENDPOINT"),
    (410, {}, "refused the request (HTTP 410)", "Run the same command again"),
    (429, {"Retry-After": "3600"}, "too many requests were made (HTTP 429)", "again in 3,600 seconds"),
    (429, {"RateLimit": '"api";r=0;t=250'}, "too many requests were made (HTTP 429)", "again in 250 seconds"),
    (500, {}, "the Hub failed (HTTP 500)", "status.huggingface.co"),
    (502, {}, "the Hub failed (HTTP 502)", "Run the same command again later"),
    (503, {"Retry-After": "600"}, "the Hub failed (HTTP 503)", "files that were fetched whole are kept"),
    (504, {}, "the Hub failed (HTTP 504)", "Nothing is wrong here"),
]


@pytest.mark.parametrize("asked", [API, HEAD, GET])
@pytest.mark.parametrize(("status", "headers", "message", "hint"), ANSWERS)
def test_resolve_source_says_what_an_answer_means_and_no_token(
    hub: Hub,
    repo: Repo,
    slept: list[float],
    logged: list[str],
    asked: str,
    status: int,
    headers: dict[str, str],
    message: str,
    hint: str,
) -> None:
    body = json.dumps({"error": "and with {authorization}"})
    hub.faults.append(Fault(asked, status, ECHO | headers, body))
    error = refused()
    assert message in error.message
    assert hint in str(error.hint)
    assert f"Bearer {TOKEN}" in hub.tokens
    assert TOKEN not in " ".join([error.message, str(error.hint), *logged])
    assert sum(slept) <= 60
    hub.faults.clear()
    fetched(repo)


def test_resolve_source_waits_for_as_long_as_is_asked_where_that_is_short(
    hub: Hub, repo: Repo, slept: list[float]
) -> None:
    hub.faults.append(Fault(GET, 429, {"Retry-After": "3"}, times=2))
    fetched(repo)
    assert slept == [4, 4]


def test_resolve_source_takes_the_cache_at_once_where_the_hub_fails(hub: Hub, repo: Repo, slept: list[float]) -> None:
    fetched(repo)
    for status, headers in ((429, {"Retry-After": "60"}), (503, {}), (401, {}), (200, {})):
        hub.faults[:] = [Fault(API, status, headers, LOGIN_PAGE.decode())]
        fetched(repo) if status != 200 else refused()
    assert slept == []
