"""A Hub that fails, sends malformed responses or echoes tokens, read by the real client."""

import json
import time
from pathlib import Path

import pytest
from huggingface_hub import close_session

from ctxextend import SourceError
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import without_tokens
from tests.helpers import pico
from tests.helpers.hub_server import Fault, Hub, Repo, use_hub
from tests.helpers.trainings import invoke

TOKEN = "hf_SecretSecretSecretSecretSecretSecr"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = pico.make(tmp_path_factory.mktemp("published") / "model", "gpt2")
    return checkpoint.folder


@pytest.fixture(autouse=True)
def sleep_times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set a token, and record the client's calls of `time.sleep` instead of sleeping."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return waits


@pytest.fixture
def repo(hub: Hub, folder: Path) -> Repo:
    return hub.add("owner/model", folder)


def assert_download_fails(message: str, hint: str) -> SourceError:
    """Check that the download fails with this message and hint."""
    with pytest.raises(SourceError) as caught:
        resolve_source("owner/model")
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    return caught.value


def assert_downloads(repo: Repo) -> None:
    """Check that the downloaded files equal the published ones."""
    found = resolve_source("owner/model").folder
    downloaded = {name: (found / name).read_bytes() for name in repo.files}
    assert downloaded == repo.files


def test_resolve_source_fails_if_every_connection_is_cut(
    hub: Hub, repo: Repo, sleep_times: list[float]
) -> None:
    repo.is_cut = True
    assert_download_fails(
        "owner/model could not be downloaded from the Hub: ", "complete files are kept"
    )
    assert sum(sleep_times) <= 30
    repo.is_cut = False
    hub.requests.clear()
    assert_downloads(repo)
    assert hub.downloaded() == {WEIGHTS}


# ---- wrong responses

ECHO = {"X-Error-Message": "You came with {authorization}"}
API = "GET api/models"
HEAD = "HEAD .*/resolve/"
GET = f"GET .*/resolve/.*{WEIGHTS}"
RESPONSES = [
    (401, "", "could not be downloaded from the Hub: Client error '401", "hf auth login"),
    (401, "RepoNotFound", "no Hub model that this account can access", "hf auth login"),
    (403, "", "could not be downloaded from the Hub: Client error '403", "a fine-grained token"),
    (403, "GatedRepo", "owner/model is a gated model on the Hub", "Request access"),
    (404, "RevisionNotFound", "has no revision", "Check its branches and tags"),
    (404, "EntryNotFound", "could not be downloaded from the Hub: ", "Run the same command again"),
    (404, "", "could not be downloaded from the Hub: Client error '404", "HF_ENDPOINT"),
    (429, "", "could not be downloaded from the Hub: Client error '429", "too many requests"),
    (503, "", "could not be downloaded from the Hub: Server error '503", "status.huggingface.co"),
]


@pytest.mark.parametrize("pattern", [API, GET])
@pytest.mark.parametrize(("status", "code", "message", "hint"), RESPONSES)
def test_resolve_source_explains_http_errors(
    hub: Hub, repo: Repo, pattern: str, status: int, code: str, message: str, hint: str
) -> None:
    headers = {"X-Error-Code": code} if code else {}
    body = json.dumps({"error": "and with {authorization}"})
    hub.faults.append(Fault(pattern, status, ECHO | headers, body))
    error = assert_download_fails(message, hint)
    assert f"Bearer {TOKEN}" in hub.tokens
    assert TOKEN not in without_tokens(str(error))
    hub.faults.clear()
    assert_downloads(repo)


def test_resolve_source_uses_the_cache_at_once_if_the_hub_fails(
    hub: Hub, repo: Repo, sleep_times: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_downloads(repo)
    for status, headers in ((429, {"Retry-After": "60"}), (503, {}), (401, {})):
        hub.faults[:] = [Fault(API, status, headers)]
        assert_downloads(repo)
    use_hub("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    assert_downloads(repo)
    assert sleep_times == []


# ---- connection errors


@pytest.mark.parametrize(
    ("endpoint", "proxy", "hint"),
    [
        ("http://127.0.0.1:9", "", "Check the connection"),
        ("nonsense", "", "HF_ENDPOINT"),
        ("http://[bad", "", "HF_ENDPOINT"),
        ("https", "", "SSL_CERT_FILE"),
        ("https://hub.invalid", "http://user:open-sesame@127.0.0.1:9", "HTTPS_PROXY"),
    ],
)
def test_resolve_source_explains_connection_errors(
    hub: Hub,
    repo: Repo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    proxy: str,
    hint: str,
) -> None:
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    endpoint = hub.endpoint.replace("http", "https") if endpoint == "https" else endpoint
    use_hub(endpoint, tmp_path / "cache", monkeypatch)
    close_session()
    error = assert_download_fails("the Hub could not be reached: ", hint)
    close_session()
    assert "open-sesame" not in str(error)


# ---- hostile file names


@pytest.mark.parametrize("name", ["../../../outside", "/tmp/outside", "C:\\outside", "n" * 300])
def test_resolve_source_with_a_hostile_file_name_writes_nothing_outside_the_cache(
    repo: Repo, tmp_path: Path, name: str
) -> None:
    repo.files[name] = b"hostile"
    assert_download_fails(name[:20], "")
    outside = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and tmp_path / "cache" not in path.parents
    ]
    assert outside == []
    assert not Path("/tmp/outside").exists()


def test_resolve_source_skips_files_of_version_control(hub: Hub, repo: Repo) -> None:
    unusual = {"a\x1b[2Jb": b"1", "a\nb": b"2", "ä": b"3", "a[1].txt": b"4"}
    hooks = {
        ".git/hooks/post-checkout": b"#!/bin/sh",
        "2_Dense/.git/config": b"[core]",
        "__pycache__/x.pyc": b"x",
    }
    repo.files |= unusual | hooks
    source = resolve_source("owner/model")
    expected = set(repo.files) - set(hooks)
    assert hub.downloaded() == expected
    assert set(source.not_downloaded) == set(hooks)
    done = invoke("resize", "owner/model", "--to", 40, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output


# ---- tokens


def test_commands_never_print_a_token(hub: Hub, repo: Repo) -> None:
    hub.faults.append(Fault(API, 403, {"X-Error-Message": "You came with {authorization}"}))
    for command in (
        ("resize", "owner/model", "--to", "40"),
        ("resize", "owner/model", "--to", "40", "--json"),
        ("inspect", f"owner/{TOKEN}"),
        ("inspect", f"owner/{TOKEN}", "--json"),
    ):
        done = invoke(*command)
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
def test_without_tokens_removes_tokens(text: str, expected: str) -> None:
    assert without_tokens(text) == expected
