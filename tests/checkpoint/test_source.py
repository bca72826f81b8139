import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend import SourceError, plan_resize
from ctxextend.checkpoint.source import resolve_source
from tests.helpers import pico
from tests.helpers.hub_server import SHA, Hub
from tests.helpers.pico import STALE
from tests.helpers.trainings import invoke

MakePico = Callable[..., pico.Pico]
TOKEN = "hf_SecretSecretSecretSecretSecretSecr"


def test_resolve_source_downloads_needed_files_of_a_hub_id_once(
    hub: Hub, make_pico: MakePico, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_pico("gpt2").folder
    for name in (*STALE, "vocab.txt", "2_Dense/pytorch_model.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    hub.add("gpt2", folder)
    environment = dict(os.environ)
    environment.pop("HF_HUB_DISABLE_PROGRESS_BARS", None)
    environment["HF_ENDPOINT"] = hub.endpoint
    environment["HF_HUB_CACHE"] = str(tmp_path / "cache")
    environment["HF_HUB_OFFLINE"] = "0"
    command = [sys.executable, "-m", "ctxextend", "resize", "gpt2", "--to", "40"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "gpt2-40\n", done.stderr

    needed = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "vocab.txt",
        "2_Dense/pytorch_model.bin",
    }
    assert hub.downloaded() == needed
    files = set(pico.contents(Path("gpt2-40")))
    assert files == {*needed, "README.md", "ctxextend.yaml"}
    assert "%|" not in done.stderr
    plan = plan_resize("gpt2", to=40)
    assert set(STALE) <= set(plan.plan.checkpoint.omitted)

    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    offline = invoke("resize", "gpt2", "--to", 40, "-o", "offline")
    assert offline.exit_code == 0, offline.stderr
    assert hub.requests == []
    written_offline = pico.contents(Path("offline"))
    assert written_offline == pico.contents(Path("gpt2-40"))
    refused = invoke("resize", "owner/nothing", "--to", 40)
    assert "HF_HUB_OFFLINE disables downloads" in refused.stderr


def test_resolve_source_uses_a_revision_and_a_token(
    hub: Hub, make_pico: MakePico, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = make_pico("bert").folder
    hub.add("owner/model", folder, revisions=("v2", SHA))
    done = invoke("resize", "owner/model", "--to", 40, "--revision", "v2", "--json")
    assert done.exit_code == 0, done.stderr
    assert f'"revision": "{SHA}"' in done.stdout
    assert f"Bearer {TOKEN}" in hub.tokens

    assert TOKEN not in done.stdout
    assert TOKEN not in done.stderr
    for data in pico.contents(Path("model-40")).values():
        assert TOKEN.encode() not in data

    missing = invoke("resize", "owner/model", "--to", 41, "--revision", "v3")
    assert missing.exit_code == 1
    assert "owner/model has no revision 'v3' on the Hub" in missing.stderr


def test_resolve_source_prefers_a_local_folder(make_pico: MakePico) -> None:
    Path("openai").mkdir()
    make_pico("gpt2").folder.rename("openai/gpt2")
    assert resolve_source("openai/gpt2").kind == "folder"
    Path("openai/gpt2").rename("tiny-gpt2")
    assert resolve_source("tiny-gpt2").kind == "folder"


@pytest.mark.parametrize("reference", ["no/such/folder", ""])
def test_resolve_source_rejects_missing_paths(reference: str) -> None:
    with pytest.raises(SourceError, match="is not an existing folder or regular file"):
        resolve_source(reference)


def test_resolve_source_reports_an_unreadable_folder_instead_of_asking_the_hub(
    tmp_path: Path,
) -> None:
    with pytest.raises(SourceError, match="has no subfolder a"):
        resolve_source("tiny-gpt2", subfolder="a" * 300)
    Path("owner/name").mkdir(parents=True)
    Path("owner").chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(SourceError, match="owner/name cannot be read: Permission denied"):
            resolve_source("owner/name")
    finally:
        os.seteuid(0)
        Path("owner").chmod(0o700)


def test_resolve_source_names_the_output_after_a_link(make_pico: MakePico) -> None:
    Path("small").symlink_to(make_pico("gpt2").folder)
    assert plan_resize("small", to=40).output.path == Path("small-40")
    assert plan_resize("small/.", to=40).output.path == Path("small-40")


def test_open_reference_rejects_a_model_type_without_a_table_before_weights_are_read(
    hub: Hub, tmp_path: Path
) -> None:
    for name, config in {
        "xlnet": '{"model_type": "xlnet"}',
        "relative": '{"model_type": "bert", "position_embedding_type": "relative_key"}',
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(config)
        (folder / "model-q4.gguf").write_bytes(b"GGUF")
        for command in (
            ("inspect", folder),
            ("resize", folder, "--to", 40),
        ):
            done = invoke(*command)
            assert done.exit_code == 1
            assert "no position table to resize; it uses" in done.stderr, done.stderr
        repository = hub.add(f"owner/{name}", folder)
        repository.files["model.safetensors"] = b"large"
        assert "no position table to resize; it uses" in invoke("inspect", f"owner/{name}").stderr
    assert hub.downloaded() == {"config.json"}
    # --model-type takes precedence over the config.
    assert (
        "only model-q4.gguf: a GGUF file."
        in invoke("inspect", tmp_path / "xlnet", "--model-type", "bert").stderr
    )
