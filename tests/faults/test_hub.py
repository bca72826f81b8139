"""The Hub that fails, lies, or tells what it should not: the real client, and a server on loopback."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session
from typer.testing import CliRunner

from ctxextend import SourceError
from ctxextend.checkpoints.source import resolve_source
from ctxextend.cli.app import app_of
from ctxextend.errors import without_tokens
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


def test_resolve_source_gives_up_where_every_connection_is_cut(hub: Hub, repo: Repo, slept: list[float]) -> None:
    repo.cut = -1
    error = refused()
    assert "owner/model could not be fetched from the Hub: " in error.message
    assert "Files that were fetched whole are kept." in str(error.hint)
    assert sum(slept) <= 30
    repo.cut = 0
    hub.sent.clear()
    fetched(repo)
    assert [name for name, *_ in hub.sent] == [WEIGHTS]


def test_resolve_source_after_a_kill_fetches_nothing_twice_that_came_whole(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    hub.faults.append(Fault(f"GET .*{WEIGHTS}", status=0))
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", "from ctxextend.checkpoints.source import *; resolve_source('owner/model')"]
    process = subprocess.Popen(command, env=os.environ | environment)
    small = {git_hash(data) for name, data in repo.files.items() if name != WEIGHTS}
    pause, deadline = threading.Event(), time.monotonic() + 60
    while f"GET owner/model/resolve/{SHA}/{WEIGHTS}" not in hub.requests or not small <= blobs(tmp_path):
        assert process.poll() is None and time.monotonic() < deadline
        pause.wait(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(name.endswith(".incomplete") for name in blobs(tmp_path))
    hub.faults.clear()
    hub.sent.clear()
    fetched(repo)
    assert [name for name, *_ in hub.sent] == [WEIGHTS]


# ---- what is not what it should be

LOGIN_PAGE = b"<!DOCTYPE html><title>Welcome to the hotel</title>" * 20


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("what", ["shorter", "longer", "a page"])
def test_resolve_source_notices_what_is_not_what_the_hub_states(
    repo: Repo, tmp_path: Path, name: str, what: str
) -> None:
    true = repo.files[name]
    repo.sent[name] = {"shorter": true[:-1], "longer": true + b" ", "a page": LOGIN_PAGE}[what]
    error = refused()
    assert f"should be of size {len(true)} but has size {len(repo.sent[name])}" in error.message
    assert "run the same command again" in str(error.hint).lower()
    assert not {hashlib.sha256(true).hexdigest(), git_hash(true)} & blobs(tmp_path)
    repo.sent.clear()
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
    (404, {}, "refused the request (HTTP 404)", "HF_ENDPOINT"),
    (429, {"Retry-After": "3600"}, "too many requests were made (HTTP 429)", "again in a few minutes"),
    (429, {"RateLimit": '"api";r=0;t=250'}, "too many requests were made (HTTP 429)", "again in a few minutes"),
    (500, {}, "the Hub failed (HTTP 500)", "status.huggingface.co"),
    (502, {}, "the Hub failed (HTTP 502)", "Run the same command again in a few minutes"),
    (
        503,
        {"Retry-After": "600"},
        "the Hub failed (HTTP 503)",
        "again in a few minutes; see https",
    ),
    (504, {}, "the Hub failed (HTTP 504)", "Files that were fetched whole are kept."),
]


@pytest.mark.parametrize("asked", [API, HEAD, GET])
@pytest.mark.parametrize(("status", "headers", "message", "hint"), ANSWERS)
def test_resolve_source_says_what_an_answer_means(
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
    assert TOKEN not in without_tokens(str(error))
    hub.faults.clear()
    fetched(repo)


@pytest.mark.parametrize("asked", [HEAD, GET])
def test_resolve_source_of_a_file_that_is_listed_and_not_there(hub: Hub, repo: Repo, asked: str) -> None:
    hub.faults.append(Fault(asked, 404, {"X-Error-Code": "EntryNotFound"}))
    error = refused()
    assert "owner/model lists a file that the Hub does not hold: " in error.message
    assert "--revision" in str(error.hint)


def test_resolve_source_takes_the_cache_at_once_where_the_hub_fails(
    hub: Hub, repo: Repo, slept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(repo)
    for status, headers in ((429, {"Retry-After": "60"}), (503, {}), (401, {})):
        hub.faults[:] = [Fault(API, status, headers)]
        fetched(repo)
    ask_from_here("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    fetched(repo)
    assert slept == []


MALFORMED = ["", "{", "null", "7", '"x"', '{"id": 7, "sha": []}', '[{"type": "file"}]', "[" * 5000]


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        *[(f"{API}/owner/model/revision", body) for body in (LOGIN_PAGE.decode(), *MALFORMED)],
        *[(f"{API}/owner/model/tree", body) for body in (LOGIN_PAGE.decode(), *MALFORMED)],
        (HEAD, ""),
    ],
    ids=lambda value: value[-10:],
)
def test_resolve_source_says_that_an_answer_is_not_the_hubs(hub: Hub, repo: Repo, asked: str, body: str) -> None:
    hub.faults.append(Fault(asked, body=body))
    error = refused()
    assert "owner/model could not be fetched from the Hub: " in error.message
    assert "login page" in str(error.hint)


def test_resolve_source_tells_no_other_host_the_token(
    hub: Hub, repo: Repo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as other:
        other.add("owner/model", folder)
        hub.storage = other.endpoint
        fetched(repo)
        assert [name for name, *_ in other.sent] == [WEIGHTS]
        hub.faults.append(Fault(API, 307, {"Location": f"{other.endpoint}/api/models/owner/model/revision/main"}))
        fetched(repo)
        assert len(other.requests) > 1
        assert set(other.tokens) == {""}
        assert f"Bearer {TOKEN}" in hub.tokens


# ---- what cannot be reached


@pytest.mark.parametrize(
    ("endpoint", "message", "hint"),
    [
        ("http://127.0.0.1:9", "could not be reached", "Check the connection"),
        ("http://nowhere.invalid", "could not be reached", "Check the connection"),
        ("nonsense", "could not be reached", "HF_ENDPOINT"),
        ("http://[bad", "could not be reached", "HF_ENDPOINT"),
        ("https", "could not be reached: [SSL", "SSL_CERT_FILE"),
        ("proxy refused", "could not be reached", "HTTPS_PROXY"),
        ("proxy forbids", "could not be reached", "HTTPS_PROXY"),
        ("proxy unknown", "Unknown scheme for proxy", "HTTPS_PROXY"),
    ],
)
def test_resolve_source_says_why_nothing_can_be_reached(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, message: str, hint: str
) -> None:
    proxies = {
        "refused": "http://user:{}@127.0.0.1:9",
        "forbids": "http://user:{}@" + hub.endpoint[7:],
        "unknown": "x://u:{}@h",
    }
    if endpoint.startswith("proxy"):
        monkeypatch.setenv("HTTPS_PROXY", proxies[endpoint.split()[1]].format(PASSWORD))
        endpoint = "https://hub.invalid"
    elif endpoint == "https":
        endpoint = hub.endpoint.replace("http", "https")
    ask_from_here(endpoint, tmp_path / "cache", monkeypatch)
    close_session()
    error = refused()
    close_session()
    assert message in error.message
    assert hint in str(error.hint)
    assert PASSWORD not in str(error)


def test_resolve_source_says_that_the_cache_cannot_be_written(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    error = refused()
    assert "the Hub's cache cannot be written: [Errno 20] Not a directory" in error.message
    assert "HF_HOME" in str(error.hint)


# ---- what a listing may name


@pytest.mark.parametrize(
    "name", ["../../../outside", "/tmp/outside", "..\\outside", "C:\\outside", "a/../../../../outside", "n" * 300]
)
def test_resolve_source_of_a_hostile_name_writes_nothing_outside(repo: Repo, tmp_path: Path, name: str) -> None:
    repo.files[name] = b"hostile"
    error = refused()
    assert name[:20] in error.message
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "cache" not in path.parents]
    assert outside == []
    assert not Path("/tmp/outside").exists()


def test_resolve_source_leaves_the_files_of_version_control(hub: Hub, repo: Repo) -> None:
    strange = {"a\x1b[2Jb": b"1", "a\nb": b"2", "ä": b"3"}
    hooks = {".git/hooks/post-checkout": b"#!/bin/sh", "2_Dense/.git/config": b"[core]"}
    repo.files |= strange | hooks
    source = resolve_source("owner/model")
    assert {name for name, *_ in hub.sent} == set(repo.files) - set(hooks)
    assert set(source.not_fetched) == set(hooks)
    done = CliRunner().invoke(app_of(), ["resize", "owner/model", "--to", "40", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output


def test_resolve_source_of_an_empty_repository(repo: Repo) -> None:
    repo.files.clear()
    done = CliRunner().invoke(app_of(), ["resize", "owner/model", "--to", "40"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")


# ---- tokens


def test_no_command_shows_a_token(hub: Hub, repo: Repo) -> None:
    hub.faults.append(Fault(API, 403, {"X-Error-Message": "You came with {authorization}"}))
    for command in (
        ("resize", "owner/model", "--to", "40"),
        ("resize", "owner/model", "--to", "40", "--json"),
        ("inspect", f"owner/{TOKEN}"),
        ("inspect", f"owner/{TOKEN}", "--json"),
    ):
        done = CliRunner().invoke(app_of(), list(command))
        assert done.exit_code == 1
        assert TOKEN not in done.stdout + done.stderr
    assert f"Bearer {TOKEN}" in hub.tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Bearer {TOKEN}.", "Bearer ***."),
        ("hf_oauth_eyJ0eXAi.eyJzdWIi.c2ln-bmF0", "***"),
        ("owner/hf_small_model, a@b", "owner/hf_small_model, a@b"),
    ],
)
def test_without_tokens_takes_away_what_looks_like_one(text: str, expected: str) -> None:
    assert without_tokens(text) == expected


# ---- data sets, which other libraries stream

# Several are read by one process, since the library that reads them takes seconds to be imported.
READER = """
import json, sys, time
from ctxextend.errors import DataError
from ctxextend.text_data import read_documents
time.sleep = lambda seconds: None
for word in sys.argv[1:]:
    try:
        print(list(read_documents([word])))
    except DataError as error:
        print(error)
"""


def test_read_documents_says_what_the_hub_answered(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"text": "some words"}\n')
    description, rows = "GET api/datasets/own/{}/", "GET datasets/own/{}/resolve/.*jsonl"
    faults = [("wrong-token", description, 401), ("forbidden", rows, 403), ("broken", description, 500)]
    for name, asked, status in faults:
        hub.add(f"datasets/own/{name}", tmp_path / "set")
        hub.faults.append(Fault(asked.format(name), status, ECHO, json.dumps({"error": "and with {authorization}"})))
    hub.add("datasets/own/sound", tmp_path / "set")
    words = [f"hf:own/{name}" for name in ("sound", *(name for name, *_ in faults))]
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", READER, *words], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    sound, *said = done.stdout.splitlines()
    assert sound == "['some words']"
    for text, (name, _, status) in zip(said, faults, strict=True):
        assert text.startswith(f"hf:own/{name}:train cannot be read: ")
        assert f"{status}" in text
    assert f"Bearer {TOKEN}" in hub.tokens
    assert TOKEN not in without_tokens(done.stdout)
