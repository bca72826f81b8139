import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from ctxextend import SourceError, plan_resize
from ctxextend.checkpoints.source import BUNDLED, resolve_source
from tests import pico
from tests.hub_server import SHA, Hub
from tests.trainings import invoke

MakePico = Callable[..., pico.Pico]
TOKEN = "hf_SecretSecretSecretSecretSecretSecr"


STALE = (
    "pytorch_model.bin",
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
    "model.fp16.safetensors",
    "x.gguf",
)


def test_resolve_source_of_a_hub_id_fetches_what_is_needed(
    hub: Hub, make_pico: MakePico, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_pico("gpt2")
    (source.folder / "vocab.txt").write_text("words")
    (source.folder / "2_Dense").mkdir()
    (source.folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"needed")
    for name in STALE:
        (source.folder / name).parent.mkdir(exist_ok=True)
        (source.folder / name).write_bytes(b"stale")
    hub.add("gpt2", source.folder)
    done = invoke("resize", "gpt2", "--to", 40)
    assert (done.exit_code, done.stdout) == (0, "gpt2-40\n"), done.stderr
    needed = {"config.json", "generation_config.json", "model.safetensors", "vocab.txt", "2_Dense/pytorch_model.bin"}
    assert hub.fetched() == needed
    assert needed < set(pico.contents(Path("gpt2-40")))
    assert "Fetching" not in done.stderr
    planned = json.loads(invoke("resize", "gpt2", "--to", 40, "--dry-run", "--json").stdout)
    assert set(STALE) <= set(planned["files"]["omitted"])
    pico.logits(source.load(Path("gpt2-40")), 40)
    recipe = yaml.safe_load(Path("gpt2-40/ctxextend.yaml").read_text())
    assert (recipe["source"], recipe["revision"], recipe["provenance"]["revision"]) == ("gpt2", SHA, SHA)
    assert "base_model: gpt2\n" in Path("gpt2-40/README.md").read_text()
    assert all(not path.is_symlink() for path in Path("gpt2-40").iterdir())

    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = invoke("resize", "gpt2", "--to", 40, "-o", "offline")
    assert again.exit_code == 0, again.stderr
    assert hub.requests == []
    assert pico.contents(Path("offline")) == pico.contents(Path("gpt2-40"))

    snapshot = next((tmp_path / "cache").glob("models--gpt2/snapshots/*"))
    cached = resolve_source(snapshot)
    assert (cached.hub_id, cached.revision, cached.name) == ("gpt2", SHA, "gpt2")
    assert any(path.is_symlink() for path in snapshot.iterdir())


def test_resolve_source_takes_a_revision_and_a_token(
    hub: Hub, make_pico: MakePico, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add("owner/model", make_pico("bert").folder, revisions=("v2", SHA))
    done = invoke("resize", "owner/model", "--to", 40, "--revision", "v2", "--json")
    assert done.exit_code == 0, done.stderr
    assert f'"revision": "{SHA}"' in done.stdout
    assert f"Bearer {TOKEN}" in hub.tokens
    written = b"".join(pico.contents(Path("model-40")).values())
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN.encode() not in written
    missing = invoke("resize", "owner/model", "--to", 41, "--revision", "v3")
    assert missing.exit_code == 1
    assert "owner/model has no revision 'v3' on the Hub" in missing.stderr


@pytest.mark.usefixtures("hub")
def test_resolve_source_of_a_missing_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="no model owner/nothing on the Hub"):
        resolve_source("owner/nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE forbids to fetch it"):
        resolve_source("owner/nothing")


def test_resolve_source_fetches_pickles_where_there_are_no_safetensors(
    hub: Hub, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2")
    torch.save(source.load().state_dict(), source.folder / "pytorch_model.bin")
    hub.add("both", source.folder)
    (source.folder / "model.safetensors").unlink()
    hub.add("pickles", source.folder)
    resolve_source("both")
    assert "pytorch_model.bin" not in hub.fetched()
    done = invoke("resize", "pickles", "--to", 40, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
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
