"""What a CI reads of `inspect`: GitHub's annotations, and a JSON object that stays short."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend import resize
from tests.helpers import pico
from tests.helpers.trainings import invoke

MakePico = Callable[..., pico.Pico]
WPE = "transformer.wpe.weight"
PAGE = 60  # lines of a terminal


def test_json_does_not_grow_with_rows(tmp_path: Path) -> None:
    output = resize("tiny-gpt2", to=4096, method="linear", output=tmp_path / "out").output
    assert len(invoke("inspect", output, "--json").stdout.splitlines()) < 200


# GitHub


def annotate(*arguments: object) -> list[str]:
    """Return the annotations of folders whose limits disagree."""
    done = invoke("inspect", *arguments, "--check", "--format", "github")
    assert done.exit_code == 3, done.output
    return done.stdout.splitlines()


@pytest.fixture
def broken(make_pico: MakePico, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder under the working directory whose config states another length."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    folder = Path(shutil.copytree(make_pico("gpt2").folder, "models/broken"))
    pico.edit_json(folder / "config.json", n_positions=11)
    return folder


def test_github_format_points_at_the_line_of_a_key(broken: Path) -> None:
    (line,) = annotate(broken)
    lines = (broken / "config.json").read_text().splitlines()
    number = 1 + next(index for index, text in enumerate(lines) if '"n_positions"' in text)
    assert line.startswith(
        f"::error file=models/broken/config.json,line={number},title=config.json n_positions::"
    )
    assert "models/broken: 11: transformer.wpe.weight has 16 rows" in line
    assert "%0AFix: ctxextend resize models/broken --to 16 --fix-limits" in line


def test_github_format_prints_paths_in_the_workspace(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(broken.parent.absolute()))
    (line,) = annotate(broken)
    assert line.startswith("::error file=broken/config.json,line=")


def test_github_format_names_no_file_outside_of_the_workspace(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    (line,) = annotate(broken)
    assert line.startswith("::error title=config.json n_positions::")


def test_github_format_escapes_what_has_a_meaning(broken: Path) -> None:
    strange = broken.rename("a,b:50%\rc\n::d")
    (line,) = annotate(strange)
    assert line.startswith("::error file=a%2Cb%3A50%25%0Dc%0A%3A%3Ad/config.json,line=")
    assert "::a,b:50%25%0Dc%0A::d: 11: " in line


def test_github_format_annotates_an_error(broken: Path) -> None:
    (broken / "config.json").write_text("{")
    done = invoke("inspect", broken, "--check", "--format", "github")
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error title=ctxextend inspect::")
    assert done.stderr.startswith("Error: ")


@pytest.mark.parametrize("indent", [None, 2])
def test_github_format_finds_nested_keys(indent: int | None, make_pico: MakePico) -> None:
    folder = Path(shutil.copytree(make_pico("gpt2").folder, "model"))
    truncation = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    text = json.dumps({"version": "1.0", "truncation": truncation, "model": {}}, indent=indent)
    (folder / "tokenizer.json").write_text(text)
    (line,) = annotate(folder)
    number = 1
    if indent:
        number = 1 + text[: text.index('"max_length"')].count("\n")
    assert f"tokenizer.json,line={number},title=" in line
    assert "title=tokenizer.json truncation.max_length::" in line
