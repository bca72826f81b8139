"""The GitHub action: its file, and the scripts of its steps, run by bash as GitHub runs them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxextend import resize
from tests.helpers.json_schemas import check_schema
from tests.helpers.pico import edit_json
from tests.helpers.repository import ROOT

ACTION = ROOT / "action.yml"
PRINT_ARGUMENTS = "printf '%s\\n' \"$@\""
# How GitHub runs a step with `shell: bash`.
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]


def steps() -> list[dict[str, Any]]:
    action = yaml.safe_load(ACTION.read_text())
    found: list[dict[str, Any]] = action["runs"]["steps"]
    return found


def script(name: str) -> str:
    """Return the script of a step."""
    (text,) = (step["run"] for step in steps() if step.get("name") == name)
    return str(text)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with ctxextend, and with a Python that prints its arguments instead of running."""
    folder = tmp_path / "programs"
    folder.mkdir()
    ctxextend = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "ctxextend"])
    texts = {"ctxextend": f'exec {ctxextend} "$@"', "python": PRINT_ARGUMENTS}
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def run_step(name: str, programs: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step with inputs, which reach it as variables of the environment."""
    file = programs / "step.sh"
    file.write_text(script(name))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    variables = {f"CTXEXTEND_{name.upper()}": value for name, value in inputs.items()}
    environment = {**os.environ, "PATH": path, "GITHUB_WORKSPACE": str(Path.cwd()), **variables}
    return subprocess.run([*BASH, file], env=environment, capture_output=True, text=True)


def check(programs: Path, path: str, arguments: str = "") -> subprocess.CompletedProcess[str]:
    return run_step("Check the length limits", programs, path=path, arguments=arguments)


@pytest.fixture
def broken() -> Path:
    """A folder whose tokenizer cuts texts."""
    folder = resize("tiny-gpt2", 64, output="models/a b").output
    edit_json(folder / "tokenizer_config.json", model_max_length=32)
    return folder


def test_action_matches_its_schema() -> None:
    check_schema("github-actions", ACTION)


def test_action_puts_no_input_into_a_script() -> None:
    for step in steps():
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize(
    ("version", "requirement"), [("", "ctxextend"), ("0.1.0", "ctxextend==0.1.0")]
)
def test_action_installs_the_version(version: str, requirement: str, programs: Path) -> None:
    done = run_step("Install ctxextend", programs, version=version)
    assert done.stdout.splitlines() == ["-m", "pip", "install", requirement]


def test_action_passes_a_folder_that_agrees(programs: Path) -> None:
    output = resize("tiny-gpt2", 64, output="models/good").output
    done = check(programs, str(output))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_action_annotates_a_folder_that_disagrees(programs: Path, broken: Path) -> None:
    output = resize("tiny-gpt2", 64, output="models/good").output
    done = check(programs, f"{output}\n{broken}\n")
    assert done.returncode == 3, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error file=models/a b/tokenizer_config.json,line=")


def test_action_fails_if_a_folder_is_missing(programs: Path) -> None:
    done = check(programs, "models/none")
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=ctxextend inspect::models/none ")


def test_action_splits_arguments_at_spaces_and_expands_nothing(programs: Path) -> None:
    (programs / "ctxextend").write_text(f"#!/bin/sh\n{PRINT_ARGUMENTS}\n")
    Path("file").touch()
    done = check(programs, "$(touch hacked)\n-q; *", "--part text  --quiet *")
    assert done.stdout.splitlines() == [
        *("inspect", "--check", "--format", "github", "--part", "text", "--quiet", "*", "--"),
        *("$(touch hacked)", "-q; *"),
    ]
    assert not Path("hacked").exists()
