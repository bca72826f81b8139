"""A Hub that fails, sends malformed responses or echoes tokens, read by the real client."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import close_session
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ctxextend import SourceError
from ctxextend.checkpoints.source import resolve_source
from ctxextend.errors import without_tokens
from tests.helpers import pico, trainings
from tests.helpers.hub_server import Fault, Hub, Repo, use_hub
from tests.helpers.trainings import invoke
from tests.helpers.word_tokenizer import text_of

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
    (401, "", "this account or token has no access (Client error '401", "hf auth login"),
    (401, "RepoNotFound", "no Hub model that this account can access", "hf auth login"),
    (403, "", "this account or token has no access (Client error '403", "a fine-grained token"),
    (403, "GatedRepo", "owner/model is a gated model on the Hub", "Request access"),
    (404, "RevisionNotFound", "has no revision", "Check its branches and tags"),
    (
        404,
        "EntryNotFound",
        "owner/model lists a file that does not exist on the Hub: ",
        "pass a commit with --revision",
    ),
    (404, "", "rejected the request (Client error '404", "HF_ENDPOINT"),
    (429, "", "too many requests (Client error '429", "Wait a few minutes"),
    (503, "", "the Hub failed (Server error '503", "status.huggingface.co"),
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


MALFORMED = [
    "<!DOCTYPE html><title>Welcome to the hotel</title>",
    "",
    "null",
    '{"id": 7, "sha": []}',
    "[" * 5000,
]


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        *((f"{API}/owner/model/revision", body) for body in MALFORMED),
        *((f"{API}/owner/model/tree", body) for body in MALFORMED),
        (HEAD, ""),
    ],
    ids=lambda value: value[-10:],
)
def test_resolve_source_reports_malformed_responses(
    hub: Hub, repo: Repo, pattern: str, body: str
) -> None:
    hub.faults.append(Fault(pattern, body=body))
    assert_download_fails("owner/model could not be downloaded from the Hub: ", "login page")


# ---- uploads


class FakeTensorBoard(TrainerCallback):
    """Write a log file as TensorBoard does."""

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        folder = Path(args.output_dir) / "runs" / "now"
        folder.mkdir(parents=True)
        path = Path(args.output_dir).resolve()
        (folder / "events").write_text(str(path))


def edit_config(path: Path, **values: Any) -> None:
    config = pico.read_json(path)
    config |= values
    path.write_text(json.dumps(config, indent=1))


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("command", ["resize", "train", "run"])
def test_push_to_hub_uploads_the_output_without_local_paths(
    command: str, exists: bool, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    source = trainings.make_source(tmp_path / "alice" / "source", "gpt2")
    book = tmp_path / "alice" / "book.txt"
    numbers = [(7 * i * i + i // 5) % 27 for i in range(2_000)]
    book.write_text(text_of(numbers))
    Path("recipe.yaml").write_text(f"source: {source}\nresize: {{to: 24}}\n")
    if exists:
        hub.add("owner/long", folder)
    arguments: list[object] = ["run", "recipe.yaml"]
    if command == "resize":
        arguments = ["resize", source, "--to", 24, "--train", book, "--steps", 1]
    elif command == "train":
        arguments = ["train", source, "--data", book, "--steps", 1]
    done = invoke(*arguments, "-o", "out", "--push-to-hub", "owner/long")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "out\n", done.stderr
    assert f"pushed to {hub.endpoint}/owner/long\n" in done.stderr
    note = "ctxextend.yaml is uploaded with local paths shortened to names; fingerprints are kept."
    assert note in done.stderr

    local = pico.contents(Path("out"))
    remote = hub.repos["owner/long"].files
    changed = {name for name in local if local[name] != remote[name]}
    assert changed == {"ctxextend.yaml"}
    for name, data in remote.items():
        if name.endswith((".yaml", ".md", ".json", "l")):
            assert b"alice" not in data

    written = yaml.safe_load(local["ctxextend.yaml"])
    pushed = yaml.safe_load(remote["ctxextend.yaml"])
    assert pushed["source"] == "./source"
    assert pushed["provenance"] == written["provenance"]
    if "train" in pushed:
        assert pushed["train"]["data"] == ["./book.txt"]
    assert hub.tokens[-1] == f"Bearer {TOKEN}"


def test_push_to_hub_uploads_no_local_path_of_a_source_and_no_logs(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "kubeflow", FakeTensorBoard)
    source = trainings.make_source(tmp_path / "alice" / "source", "gpt2")
    book = tmp_path / "alice" / "book.txt"
    numbers = [(7 * i * i + i // 5) % 27 for i in range(2_000)]
    book.write_text(text_of(numbers))
    home = str(tmp_path / "alice")
    part = {"_name_or_path": f"{home}/b/", "n": 1}
    edit_config(source / "config.json", _name_or_path=f"{home}/a", part=part)
    names = {
        "name_or_path": "owner/name",
        "special_tokens_map_file": f"C:\\{home}\\map.json",
        "vocab_file": None,
    }
    edit_config(source / "tokenizer_config.json", **names)
    flags = ["--steps", 1, "--report-to", "kubeflow", "-o", "out", "--push-to-hub", "owner/long"]
    done = invoke("train", source, "--data", book, *flags)
    assert done.exit_code == 0, done.stderr
    assert "runs/ is not uploaded: logs contain the host name and local paths." in done.stderr
    for name in ("config.json", "tokenizer_config.json"):
        assert f"{name} is uploaded with local paths shortened to names." in done.stderr
    local = pico.contents(Path("out"))
    remote = hub.repos["owner/long"].files
    assert local.keys() - remote.keys() == {"runs/now/events"}
    leaking = [name for name, data in remote.items() if str(tmp_path).encode() in data]
    assert not leaking
    expected = local["config.json"]
    expected = expected.replace(f"{home}/a".encode(), b"a")
    expected = expected.replace(f"{home}/b/".encode(), b"b")
    assert remote["config.json"] == expected
    assert remote["config.json"] != local["config.json"]
    pushed = json.loads(remote["tokenizer_config.json"])
    assert pushed["name_or_path"] == "owner/name"
    assert pushed["special_tokens_map_file"] == "map.json"


def test_push_to_hub_reports_the_url_in_json_and_keeps_a_recipe_without_paths(hub: Hub) -> None:
    done = invoke(
        "resize", "tiny-gpt2", "--to", 160, "-o", "out", "--push-to-hub", "long", "--json"
    )
    result = json.loads(done.stdout)
    assert result["pushed_to"] == f"{hub.endpoint}/me/long"
    assert "local paths" not in done.stderr
    assert hub.repos["me/long"].files == pico.contents(Path("out"))


@pytest.mark.parametrize(
    ("pattern", "status", "message"),
    [
        ("POST .*repos/create", 401, "the token has no write access: Client error '401"),
        ("POST .*commit/main", 403, "the token has no write access: Client error '403"),
        ("POST .*commit/main", 500, "Server error '500"),
    ],
)
def test_push_to_hub_keeps_the_folder_if_it_fails(
    hub: Hub, pattern: str, status: int, message: str
) -> None:
    hub.faults.append(Fault(pattern, status, ECHO))
    done = invoke("resize", "tiny-gpt2", "--to", 160, "-o", "out", "--push-to-hub", "owner/long")
    assert done.exit_code == 1
    assert done.stdout == "out\n"
    assert "Error: owner/long could not be pushed to the Hub: " in done.stderr
    assert message in done.stderr
    assert "The local folder out is complete." in done.stderr
    assert TOKEN not in done.stderr
    assert resolve_source("./out").folder.is_dir()


def test_push_to_hub_reports_connection_errors(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    done = invoke(
        "resize", "tiny-gpt2", "--to", 160, "-o", "out", "--push-to-hub", "owner/long", "--json"
    )
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert result["error"]["type"] == "OutputError"
    assert Path("out/config.json").is_file()


# ---- connection errors


@pytest.mark.parametrize(
    ("endpoint", "proxy", "hint"),
    [
        ("http://127.0.0.1:9", "", "Check the path (if local), the connection"),
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


def test_resolve_source_reports_a_cache_that_cannot_be_written(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert_download_fails(
        "could not be downloaded from the Hub: [Errno 20] Not a directory", "HF_HOME"
    )


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


def test_resolve_source_rejects_an_empty_repository(repo: Repo) -> None:
    repo.files.clear()
    done = invoke("resize", "owner/model", "--to", 40)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: The repository owner/model on the Hub is empty.")
    repo.files[".gitattributes"] = b"*.bin filter=lfs"
    assert "owner/model on the Hub is empty." in invoke("inspect", "owner/model").stderr


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
