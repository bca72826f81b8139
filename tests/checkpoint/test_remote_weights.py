"""Commands that need no values of tensors download the headers of a Hub id only."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from ctxextend import inspect, resize
from ctxextend.checkpoint import hub as hub_client
from ctxextend.checkpoint.safetensors_file import MAX_HEADER_BYTES
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.errors import CheckpointError
from tests.helpers import pico
from tests.helpers.hostile_weights import entry, pack
from tests.helpers.hub_server import SHA, Fault, Hub, Repo
from tests.helpers.rotary_models import OLD, make
from tests.helpers.time_limit import time_limit
from tests.helpers.trainings import invoke, succeed

WEIGHTS = "model.safetensors"
REPO = "someone/llama"


def publish(hub: Hub, *, is_sharded: bool = False) -> Repo:
    """Publish a small rotary model."""
    folder = make(max_position_embeddings=OLD).folder
    if is_sharded:
        model = AutoModelForCausalLM.from_pretrained(folder)
        (folder / WEIGHTS).unlink()
        model.save_pretrained(folder, max_shard_size="100KB")
    return hub.add(REPO, folder)


def cached_weights() -> list[str]:
    """Return the names of weights in the Hub cache."""
    from huggingface_hub import constants

    return [path.name for path in Path(constants.HF_HUB_CACHE).rglob("*.safetensors")]


def values_of(folder: str) -> dict[str, Any]:
    """Return the files of an output, without what names its source."""
    files = pico.contents(Path(folder))
    del files["README.md"]
    recipe: dict[str, Any] = pico.recipe_of(folder)
    for key in ("source", "revision"):
        recipe.pop(key, None)
    for key in ("revision", "source_fingerprint"):
        recipe["provenance"].pop(key)
    return files | {"ctxextend.yaml": recipe}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_resize_edit_only_of_a_hub_id_downloads_headers_and_small_files(
    hub: Hub, is_sharded: bool
) -> None:
    repo = publish(hub, is_sharded=is_sharded)
    done = invoke("resize", REPO, "--to", "64", "--edit-only", "--json", "-o", "edited")
    assert done.exit_code == 0, done.stderr
    assert cached_weights() == []
    succeed("resize", "./llama", "--to", "64", "--edit-only", "-o", "local")
    assert values_of("edited") == values_of("local")
    assert pico.recipe_of("edited")["revision"] == SHA
    assert pico.recipe_of("edited")["provenance"]["source_fingerprint"] is None
    shards = [name for name in repo.files if name.endswith(".safetensors")]
    assert len(shards) > 1 or not is_sharded
    command = resize(REPO, 64, edit_only=True, output="again").add_weights
    assert command is not None
    words = command.split()
    assert words[:3] == ["hf", "download", REPO]
    assert {*shards, SHA} <= set(words)
    assert "config.json" not in words


def test_the_command_that_adds_weights_of_a_hub_id_completes_the_output(hub: Hub) -> None:
    publish(hub)
    result = resize(REPO, 64, edit_only=True, output="it's edited")
    edited = pico.contents(result.output)
    command = result.add_weights
    assert command is not None
    environment = dict(os.environ)
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": "home"}
    environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["/bin/sh", "-c", command], check=True, env=environment, capture_output=True)
    completed = pico.contents(result.output)
    assert edited.items() <= completed.items()
    succeed("verify", "it's edited", "--base", "./llama")


def test_dry_run_and_inspect_of_a_rotary_hub_id_download_no_weights(hub: Hub) -> None:
    publish(hub)
    planned = invoke("resize", REPO, "--to", "64", "--dry-run", "--json")
    assert planned.exit_code == 0, planned.stderr
    local = invoke("resize", "./llama", "--to", "64", "--dry-run", "--json")
    for key in ("max_len_after", "edits", "files", "tables", "notes", "runtimes"):
        assert json.loads(planned.stdout)[key] == json.loads(local.stdout)[key]
    inspected = inspect(REPO)
    assert inspected.agrees
    assert cached_weights() == []
    written = resize(REPO, 64, verify=True)
    assert cached_weights() != []
    assert json.loads(planned.stdout)["bytes_to_write"] == written.bytes_written


def test_weights_that_are_in_the_cache_are_read_from_there(hub: Hub) -> None:
    publish(hub)
    resize(REPO, 64, output="full")
    hub.requests.clear()
    result = resize(REPO, 64, edit_only=True, output="edited")
    assert not any(name.endswith(".safetensors") for name in hub.downloaded())
    assert result.add_weights is not None
    assert result.add_weights.startswith("cp ")
    assert pico.recipe_of("edited")["provenance"]["source_fingerprint"] is not None


def test_dry_run_and_inspect_of_learned_rows_download_the_weights(hub: Hub) -> None:
    hub.add("someone/gpt2", BUNDLED["tiny-gpt2"])
    planned = invoke("resize", "someone/gpt2", "--to", "4x", "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    assert cached_weights() == [WEIGHTS]
    assert inspect("someone/gpt2").agrees


def test_a_header_larger_than_the_first_request_is_read_as_a_whole(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "FIRST_BYTES", 16)
    publish(hub)
    resize(REPO, 64, edit_only=True, output="edited")
    assert cached_weights() == []
    assert len([line for line in hub.requests if WEIGHTS in line and line.startswith("GET")]) == 2


@pytest.mark.parametrize(
    "content",
    [
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}",
        pack(b"[" * 5000),
        pack(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
        pack({"a": entry(0, 4, "Q4")}),
        pack({"a": entry(0, 4, shape=[9] * 1_000_000)}),
        pack({"a": {"dtype": "U8", "shape": [4]}}),
    ],
    ids=range(6),
)
def test_malformed_headers_are_refused_without_a_download(hub: Hub, content: bytes) -> None:
    repo = publish(hub)
    repo.files[WEIGHTS] = content
    problem = f"{WEIGHTS} is not a valid safetensors file"
    with time_limit(3), pytest.raises(CheckpointError, match=problem):
        resize(REPO, 64, edit_only=True, output="edited")
    assert cached_weights() == []
    assert not Path("edited").exists()


@pytest.mark.parametrize(("status", "times"), [(503, 1), (503, 9), (416, 1)])
def test_edit_only_downloads_no_weights_if_the_hub_fails(
    hub: Hub, status: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    publish(hub, is_sharded=True)
    hub.faults.append(Fault(r"GET .*model-00002.*safetensors", status=status, times=times))
    done = invoke("resize", REPO, "--to", "64", "--edit-only", "-o", "edited")
    assert cached_weights() == []
    is_passing = status == 503 and times == 1
    assert done.exit_code == (0 if is_passing else 1)
    assert Path("edited").exists() == is_passing
    if not is_passing:
        assert "could not be downloaded from the Hub" in done.stderr
