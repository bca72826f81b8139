"""Files in Mistral's own format, which no output has."""

import shutil
from pathlib import Path

import pytest

from ctxextend import verify
from tests.helpers import pico
from tests.helpers.hub_server import Hub
from tests.helpers.mistral_format import NEW, make, make_only_params
from tests.helpers.trainings import invoke, succeed, unwrapped
from tests.helpers.verifications import failed_checks

FORMAT = ("params.json", "consolidated.safetensors")
CONVERSION = "Convert it with convert_mistral_weights_to_hf.py"


def test_outputs_leave_out_mistrals_own_format() -> None:
    folder = make()
    (folder / "consolidated.00.pth").write_bytes(b"of an old release")
    done = succeed("resize", "mistral", "--to", NEW, "--output", "longer", "--verify")
    assert {path.name for path in Path("longer").iterdir()}.isdisjoint(FORMAT)
    assert "params.json (Mistral's own format, not rewritten)" in unwrapped(done.stderr)
    assert pico.config_of(Path("longer"))["rope_scaling"]["rope_type"] == "yarn"
    shutil.copy(folder / "params.json", "longer")
    assert "unexpected params.json" in failed_checks(verify("longer"))["files"]


def test_params_json_of_another_program_is_copied() -> None:
    folder = make()
    (folder / "params.json").write_text('{"lr": 0.1}')
    succeed("resize", "mistral", "--to", NEW, "--output", "longer")
    assert Path("longer/params.json").read_text() == '{"lr": 0.1}'


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


def test_consolidated_weights_of_the_hub_are_not_downloaded(hub: Hub) -> None:
    hub.add("owner/model", make())
    succeed("resize", "owner/model", "--to", NEW)
    hub.add("owner/only", make_only_params())
    done = invoke("resize", "owner/only", "--to", NEW)
    assert CONVERSION in unwrapped(done.stderr)
    assert "consolidated.safetensors" not in hub.downloaded()
