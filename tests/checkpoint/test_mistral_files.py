"""Files in Mistral's own format: next to those of transformers, and by themselves."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ctxextend import resize, verify
from tests.helpers import mistral_format, pico
from tests.helpers.hub_server import Hub
from tests.helpers.mistral_format import NEW, make, make_only_params, weights_of
from tests.helpers.trainings import invoke, succeed, train, unwrapped, write_book
from tests.helpers.verifications import failed_checks

FORMAT = ("params.json", "consolidated.safetensors")


def split(folder: Path) -> None:
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


@pytest.mark.parametrize("is_sharded", [False, True])
def test_consolidated_weights_are_copied_byte_for_byte(*, is_sharded: bool) -> None:
    folder = make()
    if is_sharded:
        split(folder)
    (folder / "consolidated.00.pth").write_bytes(b"of an old release")
    done = succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    for path in (*folder.glob("consolidated*"), folder / "model.safetensors"):
        assert (Path("longer") / path.name).read_bytes() == path.read_bytes()
    assert "skipped" not in done.stderr


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


@pytest.mark.parametrize(
    "command",
    [
        ("resize", "pico-gpt2", "--to", 32),
        ("convert", "pico-gpt2", "--scheme", "rotary", "--to", 64, "--verify"),
    ],
)
def test_changed_weights_leave_out_old_consolidated_ones(
    command: tuple[str | int, ...], make_pico: Callable[..., pico.Pico]
) -> None:
    folder = make_pico("gpt2").folder
    shutil.copy(folder / "model.safetensors", weights_of(folder))
    mistral_format.write_params(folder, {})
    name, _, *flags = command
    done = succeed(str(name), folder, *flags, "--output", "out")
    assert {path.name for path in Path("out").iterdir()}.isdisjoint(FORMAT)
    assert "Mistral's own format, not rewritten" in unwrapped(done.stderr)


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
    assert "params.json is not in the base" in failed


CONVERSION = "Convert it with convert_mistral_weights_to_hf.py"


@pytest.mark.parametrize("has_config", [False, True])
def test_a_folder_with_only_this_format_is_refused_by_the_conversion(*, has_config: bool) -> None:
    folder = make()
    config = (folder / "config.json").read_text()
    shutil.rmtree(folder)
    make_only_params("mistral")
    if has_config:
        (folder / "config.json").write_text(config)
    for reference in ("mistral", "mistral/consolidated.safetensors"):
        done = invoke("resize", reference, "--to", NEW, "--output", "longer")
        assert done.exit_code == 1
        assert "a file in Mistral's or Meta's own format" in unwrapped(done.stderr)
        assert CONVERSION in unwrapped(done.stderr)
    assert not Path("longer").exists()


def test_a_hub_model_with_only_this_format_is_refused_before_its_weights_are_downloaded(
    hub: Hub,
) -> None:
    hub.add("owner/model", make_only_params())
    done = invoke("resize", "owner/model", "--to", NEW)
    assert done.exit_code == 1
    assert CONVERSION in unwrapped(done.stderr)
    assert "consolidated.safetensors" not in hub.downloaded()


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
    stale = (
        "Not copied: consolidated.safetensors, params.json (Mistral's own format, not rewritten)"
    )
    assert stale in unwrapped(done.stderr)


def test_resized_rows_leave_out_old_consolidated_weights(
    make_pico: Callable[..., pico.Pico],
) -> None:
    folder = make_pico("gpt2").folder
    shutil.copy(folder / "model.safetensors", weights_of(folder))
    done = succeed("resize", folder, "--to", 32, "--output", "longer")
    assert not weights_of(Path("longer")).exists()
    stale = "Not copied: consolidated.safetensors (Mistral's own format, not rewritten)"
    assert stale in unwrapped(done.stderr)
