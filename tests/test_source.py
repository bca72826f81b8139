import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ctxextend import SourceError, plan_resize
from ctxextend.checkpoints.source import BUNDLED, resolve_source
from tests import pico
from tests.hub_server import SHA, Hub, serve

MakePico = Callable[..., pico.Pico]
TOKEN = "hf_SecretSecretSecretSecretSecretSecr"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as hub:
        yield hub


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run the real command with the real client against the server, with a cache of the test's own."""

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        return subprocess.run(
            [sys.executable, "-m", "ctxextend", *arguments],
            env=os.environ | settings | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def resolve_hub(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(run("resize", "gpt2", "--to", "40", "--dry-run", "--json").stdout)
    return values


def test_resolve_source_of_a_hub_id_fetches_what_is_needed(
    hub: Hub, run: Run, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2")
    (source.folder / "vocab.txt").write_text("words")
    (source.folder / "2_Dense").mkdir()
    (source.folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"needed")
    stale = [
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "model.fp16.safetensors",
        "x.gguf",
    ]
    for name in stale:
        (source.folder / name).parent.mkdir(exist_ok=True)
        (source.folder / name).write_bytes(b"stale")
    hub.add("gpt2", source.folder)
    done = run("resize", "gpt2", "--to", "40")
    assert (done.returncode, done.stdout) == (0, "gpt2-40\n"), done.stderr
    needed = {"config.json", "generation_config.json", "model.safetensors", "vocab.txt", "2_Dense/pytorch_model.bin"}
    assert hub.fetched() == needed
    assert needed < set(pico.contents(Path("gpt2-40")))
    assert "Fetching" not in done.stderr
    omitted = resolve_hub(run)["files"]["omitted"]
    assert set(stale) <= set(omitted)
    pico.logits(source.load(Path("gpt2-40")), 40)
    recipe = yaml.safe_load(Path("gpt2-40/ctxextend.yaml").read_text())
    assert (recipe["source"], recipe["revision"], recipe["provenance"]["revision"]) == ("gpt2", SHA, SHA)
    assert "base_model: gpt2\n" in Path("gpt2-40/README.md").read_text()
    assert all(not path.is_symlink() for path in Path("gpt2-40").iterdir())

    hub.requests.clear()
    again = run("resize", "gpt2", "--to", "40", "-o", "offline", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert hub.requests == []
    assert pico.contents(Path("offline")) == pico.contents(Path("gpt2-40"))

    snapshot = next((tmp_path / "hf" / "hub").glob("models--gpt2/snapshots/*"))
    cached = resolve_source(snapshot)
    assert (cached.hub_id, cached.revision, cached.name) == ("gpt2", SHA, "gpt2")
    assert any(path.is_symlink() for path in snapshot.iterdir())


def test_resolve_source_takes_a_revision_and_a_token(hub: Hub, run: Run, make_pico: MakePico, tmp_path: Path) -> None:
    hub.add("owner/model", make_pico("bert").folder, revisions=("v2", SHA))
    done = run("resize", "owner/model", "--to", "40", "--revision", "v2", "--json", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert f'"revision": "{SHA}"' in done.stdout
    assert f"Bearer {TOKEN}" in hub.tokens
    written = b"".join(pico.contents(Path("model-40")).values())
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN.encode() not in written
    missing = run("resize", "owner/model", "--to", "41", "--revision", "v3")
    assert missing.returncode == 1
    assert "owner/model has no revision 'v3' on the Hub" in missing.stderr


def test_resolve_source_of_a_missing_repository(run: Run) -> None:
    done = run("resize", "owner/nothing", "--to", "40")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no model owner/nothing on the Hub" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(Path().iterdir()) == []


def test_resolve_source_where_the_user_forbids_to_ask(run: Run) -> None:
    offline = run("resize", "gpt2", "--to", "40", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "HF_HUB_OFFLINE forbids to fetch it" in offline.stderr


def test_resolve_source_fetches_pickles_where_there_are_no_safetensors(
    hub: Hub, run: Run, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2")
    torch.save(source.load().state_dict(), source.folder / "pytorch_model.bin")
    hub.add("both", source.folder)
    (source.folder / "model.safetensors").unlink()
    hub.add("pickles", source.folder)
    assert run("resize", "both", "--to", "40").returncode == 0
    assert "pytorch_model.bin" not in hub.fetched()
    done = run("resize", "pickles", "--to", "40", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "pytorch_model.bin" in hub.fetched()
    assert source.load(tmp_path / "out").config.n_positions == 40


def test_resolve_source_prefers_a_local_folder_and_says_so(make_pico: MakePico) -> None:
    make_pico("gpt2").folder.rename("gpt2")
    source = resolve_source("gpt2")
    assert source.kind == "folder"
    assert "gpt2 is a local folder here, and it wins over a model of the Hub of that name." in source.notes
    Path("gpt2").rename("tiny-gpt2")
    assert "wins over the bundled checkpoint" in resolve_source("tiny-gpt2").notes[0]
    assert resolve_source("./tiny-gpt2").notes == ()
    assert plan_resize("tiny-gpt2", to=40).notes[0].startswith("tiny-gpt2 is a local folder here")


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_resolve_source_of_a_bundled_name(name: str) -> None:
    source = resolve_source(name)
    assert (source.kind, source.name) == ("bundled", name)
    assert (source.folder / "model.safetensors").is_file()


@pytest.mark.parametrize("reference", ["no/such/folder", "/no/such", "./x", "a b", "", "a//b", "../x"])
def test_resolve_source_of_nothing(reference: str) -> None:
    with pytest.raises(SourceError, match="There is no folder"):
        resolve_source(reference)


def test_resolve_source_of_a_file_without_weights_names_its_folder(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    with pytest.raises(SourceError, match="is no weights file") as caught:
        resolve_source(folder / "config.json")
    assert str(folder) in (caught.value.hint or "")


def test_resolve_source_refuses_a_revision_where_there_are_none(make_pico: MakePico) -> None:
    for reference in (str(make_pico("gpt2").folder), "tiny-gpt2"):
        with pytest.raises(SourceError, match="--revision v2 has no meaning"):
            resolve_source(reference, "v2")
