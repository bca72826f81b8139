"""User-defined methods, and methods with recorded settings, whose rows can be reproduced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.errors import RecipeError, ResizeError
from ctxextend.tables.methods import METHODS
from tests.helpers import pico

WPE = "transformer.wpe.weight"


def fade(rows: Any, length: int, *, power: float = 1.0) -> Any:
    """Fade new rows from the last learned row to the mean."""
    distance = np.arange(len(rows), length)[:, None] / len(rows)
    mean = rows.mean(axis=0)
    new_rows = mean + (rows[-1] - mean) / distance**power
    return np.vstack([rows, new_rows])


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(one) for one in arguments])


@pytest.fixture
def registered() -> Iterator[None]:
    ctxextend.register_method("fade", fade)
    yield
    METHODS.pop("fade", None)


@pytest.mark.usefixtures("registered")
def test_register_method_adds_a_method_to_resize_and_extend_model() -> None:
    from transformers import GPT2LMHeadModel

    out = ctxextend.resize("tiny-gpt2", 256, "fade:power=2", keep_first=1, output="out").output
    table = load_file(out / "model.safetensors")[WPE]
    expected = fade(table[1:128].astype(np.float64), 255, power=2.0)
    assert table[1:].tobytes() == expected.astype(np.float32).tobytes()

    root = ctxextend.plan_resize("tiny-gpt2", 256).plan.checkpoint.root
    model = GPT2LMHeadModel.from_pretrained(root)
    ctxextend.extend_model(model, 256, "fade:power=2", keep_first=1)
    loaded = model.transformer.wpe.weight.detach().numpy()
    assert loaded.tobytes() == table.tobytes()


@pytest.fixture
def faded(registered: None) -> Path:
    """A checkpoint that was resized with the registered method."""
    return ctxextend.resize("tiny-gpt2", 256, "fade", output="out").output


def test_run_and_verify_need_the_method_to_be_registered(faded: Path) -> None:
    recipe_file = faded / "ctxextend.yaml"
    recipe = yaml.safe_load(recipe_file.read_text())
    assert recipe["resize"] == {"to": 256, "method": "fade:power=1", "keep_first": 0}
    assert ctxextend.verify(faded).passed
    again = ctxextend.run(recipe_file, "again").output
    assert again is not None
    assert pico.contents(again) == pico.contents(faded)

    METHODS.pop("fade")
    message = r"line 4: Unknown method 'fade'\. .*ctxextend\.register_method"
    with pytest.raises(RecipeError, match=message):
        ctxextend.run(recipe_file, "again", force=True)
    result = ctxextend.verify(faded)
    found = {check.name: check.passed for check in result.checks}
    assert found == {"tensors": True, "table": False, "files": True}


def test_verify_says_that_it_cannot_check_rows_of_a_method_that_is_not_registered(
    faded: Path,
) -> None:
    METHODS.pop("fade")
    done = invoke("verify", faded)
    assert done.exit_code == 3
    assert done.stdout.startswith("Not verified: nothing failed, but too little of ")
    assert "FAILED" not in done.stdout
    screen = " ".join(done.stdout.split())
    assert f"{WPE}: rows not checked, method 'fade:power=1' is not registered" in screen


@pytest.mark.parametrize("name", ["linear", "yarn", "Fade", "fade it"])
def test_register_method_rejects_names_that_are_in_use_or_invalid(name: str) -> None:
    message = f"The method name {name!r} is in use or invalid. Choose another"
    with pytest.raises(ResizeError, match=message):
        ctxextend.register_method(name, fade)


def too_few_rows(rows: Any, length: int) -> Any:
    return rows


def rows_of_nan(rows: Any, length: int) -> Any:
    return np.full((length, rows.shape[1]), np.nan)


def test_register_method_passes_text_settings_unchanged() -> None:
    seen = list[str]()

    def custom(rows: Any, length: int, *, mode: str = "v1.0", power: float = 1.0) -> Any:
        seen.append(f"{mode} {power}")
        return np.resize(rows, (length, rows.shape[1]))

    ctxextend.register_method("custom", custom)
    try:
        ctxextend.resize("tiny-gpt2", 256, "custom", output="out")
        recipe = yaml.safe_load(Path("out/ctxextend.yaml").read_text())
        assert recipe["resize"]["method"] == "custom:mode=v1.0,power=1"
        ctxextend.resize("tiny-gpt2", 256, "custom:mode=v2.0,power=2.0", output="other")
        assert {*seen} == {"v1.0 1.0", "v2.0 2.0"}
        assert ctxextend.verify("other").passed
    finally:
        METHODS.pop("custom")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (too_few_rows, r"returned shape \(128, \d+\), not \(256, \d+\)"),
        (rows_of_nan, "returned NaN or infinity"),
    ],
)
def test_resize_rejects_wrong_shapes_and_non_finite_rows_of_a_user_method(
    function: Any, message: str
) -> None:
    ctxextend.register_method("custom", function)
    try:
        with pytest.raises(ResizeError, match=message):
            ctxextend.resize("tiny-gpt2", 256, "custom", output="out")
    finally:
        METHODS.pop("custom")
    assert not Path("out").exists()


# ---- chosen settings are recorded


def break_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make choosing settings from a table fail, because another version may choose differently."""
    for name in ("typical_rows", "_valley_sigma", "default_gains"):
        monkeypatch.setattr(f"ctxextend.tables.bands.{name}", None)


@pytest.mark.parametrize("method", ["bands", "auto", "bands:sigma=6"])
def test_run_reproduces_outputs_without_choosing_settings_again(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ctxextend.resize("tiny-gpt2", 512, method, output="out").output
    recipe = yaml.safe_load((out / "ctxextend.yaml").read_text())
    written = recipe["resize"]["method"]
    assert written.startswith("bands:sigma=")
    assert "gain=" in written
    break_choices(monkeypatch)
    again = ctxextend.run(out / "ctxextend.yaml", "again").output
    assert again is not None
    assert pico.contents(again) == pico.contents(out)
    assert ctxextend.verify(out).passed


@pytest.fixture
def two_tables(tmp_path: Path) -> Path:
    """A model with two tables, one with and one without a high-frequency part."""
    source = pico.make_led(tmp_path / "led")
    pico.edit_json(source / "config.json", architectures=["LEDForConditionalGeneration"])
    path = source / "model.safetensors"
    tensors = load_file(path)
    decoder, encoder = (name for name in sorted(tensors) if "embed_positions" in name)

    rows, width = tensors[encoder].shape
    turns = np.arange(rows)[:, None] * 2 * np.pi / 8 + np.arange(width)
    waves = np.sin(turns) + np.linspace(0, 3, rows)[:, None]
    steps = np.random.default_rng(0).normal(size=tensors[decoder].shape)
    walk = steps.cumsum(axis=0)

    tensors[encoder] = waves.astype(np.float32)
    tensors[decoder] = walk.astype(np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    return source


@pytest.mark.parametrize("method", ["bands", "auto"])
def test_run_reproduces_tables_with_different_settings(
    method: str, two_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ctxextend.resize(two_tables, 128, method, output="out")
    recipe = yaml.safe_load(Path("out/ctxextend.yaml").read_text())
    stated = {table["name"]: table["method"] for table in recipe["provenance"]["tables"]}
    assert recipe["resize"]["method"] == method
    assert len(stated) == 2
    assert len(set(stated.values())) == 2
    assert result.plan.methods == stated

    with monkeypatch.context() as patch:
        break_choices(patch)
        assert ctxextend.verify("out", two_tables).passed
        again = ctxextend.run("out/ctxextend.yaml", "again").output
    assert again is not None
    assert pico.contents(again) == pico.contents(Path("out"))

    changes = ["resize.method=bands:gain=1.01"]
    other = ctxextend.run("out/ctxextend.yaml", "other", changes=changes).resize
    assert other is not None
    for text in other.plan.methods.values():
        assert "gain=1.01" in text
