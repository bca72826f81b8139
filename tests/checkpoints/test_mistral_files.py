"""Weights in Mistral's own format: next to those of transformers, and by themselves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ctxextend import extend_model, resize, verify
from tests.helpers import mistral_format, pico
from tests.helpers.hub_server import Hub
from tests.helpers.mistral_format import NEW, make, make_only_params, params_of, weights_of
from tests.helpers.trainings import files_here, invoke, succeed, train, unwrapped, write_book
from tests.helpers.verifications import failed_checks

FORMAT = ("params.json", "consolidated.safetensors")


def split(folder: Path) -> tuple[Path, Path]:
    """Split the consolidated weights of a folder into two shards with an index."""
    tensors = load_file(weights_of(folder))
    weights_of(folder).unlink()
    names = sorted(tensors)
    weight_map = dict[str, str]()
    for number, part in enumerate((names[:5], names[5:]), 1):
        file = f"consolidated-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    pico.write_json(folder / "consolidated.safetensors.index.json", index)
    first, second = sorted(folder.glob("consolidated-*"))
    return first, second


def test_consolidated_weights_are_copied_byte_for_byte() -> None:
    folder = make()
    (folder / "consolidated.00.pth").write_bytes(b"of an old release")
    done = succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    for name in ("consolidated.safetensors", "consolidated.00.pth", "model.safetensors"):
        assert (Path("longer") / name).read_bytes() == (folder / name).read_bytes()
    assert "skipped" not in done.stderr


@pytest.mark.parametrize("is_only", [False, True])
def test_sharded_consolidated_weights_are_copied_byte_for_byte(*, is_only: bool) -> None:
    folder = make_only_params("mistral") if is_only else make()
    shards = split(folder)
    succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    for path in (*shards, folder / "consolidated.safetensors.index.json"):
        assert (Path("longer") / path.name).read_bytes() == path.read_bytes()
    assert verify("longer").passed


def test_a_weights_file_by_its_name_keeps_the_other_format() -> None:
    make()
    output = resize("mistral/model.safetensors", NEW, output="longer").output
    assert all((output / name).exists() for name in FORMAT)


def test_a_changed_consolidated_file_fails_verification() -> None:
    make()
    resize("mistral", NEW, output="longer")
    path = weights_of(Path("longer"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "consolidated.safetensors" in failed_checks(verify("longer"))["files"]


def test_an_output_without_config_is_replaced_by_force() -> None:
    make_only_params()
    succeed("resize", "only", "--to", NEW, "--output", "longer")
    succeed("resize", "only", "--to", 2 * NEW, "--output", "longer", "--force")
    assert params_of("longer")["max_seq_len"] == 2 * NEW


def test_shards_without_their_index_are_refused_by_its_name() -> None:
    folder = make_only_params()
    split(folder)
    (folder / "consolidated.safetensors.index.json").unlink()
    done = invoke("inspect", "only")
    assert done.exit_code == 1
    text = unwrapped(done.stderr)
    assert "has no consolidated.safetensors.index.json, only consolidated-00001-of-00002" in text
    assert "Download consolidated.safetensors.index.json" in text


def test_converted_models_leave_out_old_consolidated_weights(
    make_pico: Callable[..., pico.Pico],
) -> None:
    folder = make_pico("gpt2").folder
    shutil.copy(folder / "model.safetensors", weights_of(folder))
    mistral_format.write_params(folder, {})
    done = succeed(
        "convert", folder, "--scheme", "rotary", "--to", 64, "--output", "converted", "--verify"
    )
    assert {path.name for path in Path("converted").iterdir()}.isdisjoint(FORMAT)
    for name in FORMAT:
        stale = f"skipped: {name} (Meta's or Mistral's own format, not rewritten)"
        assert stale in unwrapped(done.stderr)


def test_extend_model_ignores_params_json() -> None:
    from transformers import AutoModelForCausalLM

    folder = make()
    before = (folder / "params.json").read_bytes()
    model = AutoModelForCausalLM.from_pretrained(folder)
    extend_model(model, NEW)
    assert model.config.max_position_embeddings == NEW
    assert (folder / "params.json").read_bytes() == before


def test_resized_rows_leave_out_old_consolidated_weights(
    make_pico: Callable[..., pico.Pico],
) -> None:
    folder = make_pico("gpt2").folder
    shutil.copy(folder / "model.safetensors", weights_of(folder))
    done = succeed("resize", folder, "--to", 32, "--output", "longer")
    assert not weights_of(Path("longer")).exists()
    stale = "skipped: consolidated.safetensors (Meta's or Mistral's own format, not rewritten)"
    assert stale in unwrapped(done.stderr)


def test_training_leaves_out_mistrals_own_format() -> None:
    make()
    write_book()
    succeed("resize", "mistral", "--to", NEW, "--output", "longer")
    done = train("longer", "trained", "--window", "16")
    assert "Not in the output: consolidated.safetensors, params.json" in unwrapped(done.stderr)
    files = {path.name for path in Path("trained").iterdir()}
    assert files.isdisjoint(FORMAT)
    assert pico.config_of(Path("trained"))["rope_scaling"]["rope_type"] == "yarn"
    checks = {check.name: check for check in verify("trained").checks}
    assert checks["files"].passed
    assert "params.json" not in " ".join(checks["files"].evidence)
    for name in FORMAT:
        shutil.copy(Path("longer") / name, "trained")
    failed = failed_checks(verify("trained"))["files"]
    assert "unexpected params.json: Meta's or Mistral's own format, not rewritten" in failed


def test_transformers_cannot_load_a_folder_without_config() -> None:
    make_only_params()
    write_book()
    done = invoke("evaluate", "only", "--data", "book.txt")
    assert done.exit_code == 1
    assert "has only weights in Mistral's own format" in unwrapped(done.stderr)
    assert "Pass the folder in the format of transformers" in unwrapped(done.stderr)


def test_other_folders_without_config_are_refused_as_before() -> None:
    folder = make_only_params()
    (folder / "params.json").unlink()
    done = invoke("inspect", "only")
    assert "has consolidated.safetensors: it is in Meta's or Mistral's own format" in unwrapped(
        done.stderr
    )
    mistral_format.write_params(folder, {})
    weights_of(folder).rename(folder / "consolidated.00.pth")
    done = invoke("inspect", "only")
    assert done.exit_code == 1
    assert "consolidated.00.pth" in unwrapped(done.stderr)


def test_a_hub_model_without_config_is_resized(hub: Hub) -> None:
    hub.add("owner/model", make_only_params())
    succeed("resize", "owner/model", "--to", NEW, "--output", "longer", "--verify")
    assert params_of("longer")["max_seq_len"] == NEW
    assert hub.downloaded() == set(FORMAT)


def test_a_cached_hub_model_without_config_is_resized_offline(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("owner/model", make_only_params())
    resize("owner/model", NEW, output="longer")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    resize("owner/model", NEW, output="offline")
    assert pico.contents(Path("offline")) == pico.contents(Path("longer"))


def test_a_failed_resize_leaves_nothing() -> None:
    make()
    before = files_here()
    index = Path("mistral/consolidated.safetensors.index.json")
    index.symlink_to("/etc/passwd")
    invoke("resize", "mistral", "--to", NEW, "--method", "linear", "--output", "longer")
    index.unlink()
    assert files_here() == before


def test_compact_params_json_stays_compact() -> None:
    folder = make_only_params()
    values = json.loads((folder / "params.json").read_text())
    (folder / "params.json").write_text(json.dumps(values, separators=(",", ":")))
    resize("only", NEW, output="longer")
    text = Path("longer/params.json").read_text()
    assert '"max_seq_len":1024,"yarn":{"original_max_position_embeddings": 256' in text


@pytest.mark.parametrize("name", FORMAT)
@pytest.mark.parametrize("command", ["resize", "inspect", "flags"])
def test_a_file_of_mistrals_own_format_is_refused_for_its_folder(name: str, command: str) -> None:
    make()
    before = files_here()
    words = {"resize": ("--to", NEW), "inspect": (), "flags": ("--to", NEW, "--for", "vllm")}
    done = invoke(command, f"mistral/{name}", *words[command])
    assert done.exit_code == 1
    assert "Pass the folder: mistral" in unwrapped(done.stderr)
    assert files_here() == before


def test_a_shard_of_mistrals_own_format_is_refused_for_its_folder() -> None:
    shard, _ = split(make())
    done = invoke("resize", shard, "--to", NEW)
    assert done.exit_code == 1
    assert "is in Meta's or Mistral's own format" in unwrapped(done.stderr)


@pytest.mark.parametrize("is_split", [False, True])
def test_a_config_states_the_model_of_consolidated_weights(*, is_split: bool) -> None:
    folder = make(params={"kv_lora_rank": 4})
    (folder / "model.safetensors").unlink()
    weights = split(folder) if is_split else (weights_of(folder),)
    succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    assert pico.config_of(Path("longer"))["max_position_embeddings"] == NEW
    assert pico.config_of(Path("longer"))["rope_parameters"]["rope_type"] == "yarn"
    assert params_of("longer")["yarn"]["factor"] == NEW // mistral_format.OLD
    for path in weights:
        assert (Path("longer") / path.name).read_bytes() == path.read_bytes()
    assert not (Path("longer") / "model.safetensors").exists()


def test_transformers_cannot_load_consolidated_weights_with_a_config() -> None:
    folder = make()
    (folder / "model.safetensors").unlink()
    write_book()
    done = invoke("evaluate", "mistral", "--data", "book.txt")
    assert done.exit_code == 1
    assert "has only weights in Mistral's own format" in unwrapped(done.stderr)
