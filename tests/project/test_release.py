"""The distributions, their metadata, and the files that other services read."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_string
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from ctxextend import resize
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.recipe_names import builtin_recipes
from ctxextend.version import __version__
from tests.helpers.json_schemas import check_schema
from tests.helpers.pico import edit_json
from tests.helpers.repository import ROOT

BUILD = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]


def project_metadata() -> Any:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return pyproject["project"]


def output_of(command: list[str], cwd: Path | None = None, env: Any = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True)
    return done.stdout


def test_citation_matches_its_schema_and_names_the_version() -> None:
    path = ROOT / "CITATION.cff"
    check_schema("citation-file-format", path)
    citation = yaml.safe_load(path.read_text())
    assert citation["version"] == __version__


def test_pre_commit_hook_fails_if_limits_disagree(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "python"
    assert hook["pass_filenames"] is False
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        assert re.search(hook["files"], name)

    folder = resize("tiny-gpt2", 256, output=tmp_path / "model").output
    command = [sys.executable, "-m", *hook["entry"].split(), *hook["args"]]
    agreeing = subprocess.run(command, cwd=folder)
    assert agreeing.returncode == 0
    edit_json(folder / "tokenizer_config.json", model_max_length=128)
    disagreeing = subprocess.run(command, cwd=folder)
    assert disagreeing.returncode == 3


@pytest.mark.slow
def test_distributions_are_complete_and_valid(tmp_path: Path) -> None:
    subprocess.run([*BUILD, str(tmp_path), str(ROOT)], check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    source = next(tmp_path.glob("*.tar.gz"))
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
    subprocess.run(check, check=True, capture_output=True)

    if (ROOT / ".git").exists():
        tracked = output_of(["git", "ls-files"], cwd=ROOT).splitlines()
        with tarfile.open(source) as archive:
            packed = {name.partition("/")[2] for name in archive.getnames()}
        missing = set(tracked) - packed
        assert {name.partition("/")[0] for name in missing} <= {".ci"}

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"ctxextend-{__version__}.dist-info/METADATA").decode()
    schemas = ROOT / "tests" / "schemas"
    for name in names:
        assert not name.startswith(("tests/", "benchmarks/", "docs/"))
    for name in builtin_recipes():
        assert f"ctxextend/recipes/{name}.yaml" in names
    for path in schemas.glob("*.json"):
        assert f"ctxextend/schemas/{path.name}" in names

    fields = message_from_string(metadata)
    assert fields["License-Expression"] == "Apache-2.0 AND PSF-2.0"
    assert fields.get_all("License-File") == ["LICENSE", "LICENSES/PSF-2.0.txt"]
    assert len(fields.get_all("Project-URL") or ()) == 5

    installed = str(tmp_path / "installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", installed, str(wheel)], check=True)
    environment = os.environ | {"PYTHONPATH": installed}
    run = [sys.executable, "-m", "ctxextend"]
    for command in (
        ["resize", "tiny-gpt2", "--to", "256"],
        ["verify", "tiny-gpt2-256"],
        ["recipes", "gpt2-4096"],
    ):
        output_of([*run, *command], cwd=tmp_path, env=environment)
    code = "import ctxextend; print(ctxextend.__file__)"
    module = output_of([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    assert module.startswith(installed)
    assert BUNDLED["tiny-gpt2"].is_dir()


def required_distributions(requirements: list[str]) -> Iterator[Distribution]:
    """Yield the installed distributions that requirements need, without other extras."""
    found = set[str]()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in found or not is_needed(requirement, {""}):
            continue
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:  # for another platform
            continue
        found.add(requirement.name)
        yield installed
        extras = {"", *requirement.extras}
        required = map(Requirement, installed.requires or ())
        waiting += [one for one in required if is_needed(one, extras)]


def is_needed(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement applies to this platform with one of the extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def link_distributions(requirements: list[str], target: Path) -> None:
    """Link the files of installed distributions into another environment, as if installed there."""
    source = Path(sysconfig.get_paths()["purelib"])
    for installed in required_distributions(requirements):
        names = {file.parts[0] for file in installed.files or ()}
        for name in names - {"..", "__pycache__"}:
            link = target / name
            if not link.exists():
                link.symlink_to(source / name)


def readme_commands(*sections: str) -> list[str]:
    """Return the commands in sections of README, except those for a clone."""
    text = (ROOT / "README.md").read_text().removeprefix("# ")
    parts = [part for part in text.split("\n## ") if part.splitlines()[0] in sections]
    assert len(parts) == len(sections)
    commands: list[str] = []
    for language, body in re.findall(r"```(sh|console)\n(.*?)```", "\n".join(parts), re.DOTALL):
        for line in body.splitlines():
            if language == "sh" or line.startswith("$ "):
                commands.append(line.removeprefix("$ "))
    return [command for command in commands if not command.startswith("make ")]


def settings_of_uv(distributions: str) -> dict[str, str]:
    """Return settings with which uvx installs the wheel, and the pinned versions of all else."""
    places = [distributions, os.environ.get("PIP_FIND_LINKS", "")]
    return {
        "UV_CONSTRAINT": str(ROOT / "constraints.txt"),
        "UV_EXTRA_INDEX_URL": os.environ.get("PIP_EXTRA_INDEX_URL", ""),
        "UV_FIND_LINKS": ",".join(filter(None, places)),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON": sys.executable,
    }


@pytest.mark.slow
def test_commands_of_readme_run_in_an_environment_with_the_plain_wheel(tmp_path: Path) -> None:
    distributions = str(tmp_path / "dist")
    build = [*BUILD, distributions, "--wheel", str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(tmp_path / "plain", with_pip=True)
    bin_folder = tmp_path / "plain" / "bin"
    python = str(bin_folder / "python")
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    target = Path(output_of([python, "-c", where]).strip())
    link_distributions(project_metadata()["dependencies"], target)
    for name in ("uv", "uvx"):
        (bin_folder / name).symlink_to(Path(sys.executable).with_name(name))
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": distributions,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    environment |= settings_of_uv(distributions)
    work = tmp_path / "work"
    work.mkdir()
    commands = readme_commands("Install", "Make a checkpoint longer")
    assert commands[:2] == ["pip install ctxextend", "uvx ctxextend demo"]
    assert len(commands) == 4
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if command == "uvx ctxextend demo":
            assert "pip install 'ctxextend[train]'" in done.stdout
    # Jinja2 comes with torch.
    names = "'accelerate', 'datasets', 'peft', 'sentence_transformers', 'matplotlib'"
    code = (
        f"from importlib.util import find_spec; print([name for name in ({names}) if "
        "find_spec(name)])"
    )
    found = output_of([python, "-c", code], env=environment)
    assert found == "[]\n"
