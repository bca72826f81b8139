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

import pytest
import yaml
from packaging.requirements import Requirement

from ctxextend import resize
from ctxextend.checkpoints.source import BUNDLED
from ctxextend.recipe_file import builtin_recipes
from ctxextend.version import __version__
from tests.helpers.json_schemas import check_schema
from tests.helpers.pico import edit_json
from tests.helpers.repository import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_and_citation_match_their_schemas() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests"]
    check_schema("github-workflows", *WORKFLOWS)
    check_schema("citation-file-format", ROOT / "CITATION.cff")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_workflow_steps_are_valid_shell_and_name_make_targets() -> None:
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        for step in (step for job in jobs for step in job["steps"] if "run" in step):
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
            if step["run"].startswith("make "):
                subprocess.run(
                    [*step["run"].split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True
                )


def test_python_versions_of_metadata_and_workflows_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text)
        for text in project["classifiers"]
    ]
    versions = [match[1] for match in named if match]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    assert project["requires-python"] == f">={versions[0]}"


def test_pre_commit_hook_fails_if_limits_disagree(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    assert all(
        re.search(hook["files"], name)
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    )
    folder = resize("tiny-gpt2", 256, output=tmp_path / "model").output
    command = [sys.executable, "-m", *hook["entry"].split(), *hook["args"]]
    assert subprocess.run(command, cwd=folder).returncode == 0
    edit_json(folder / "tokenizer_config.json", model_max_length=128)
    assert subprocess.run(command, cwd=folder).returncode == 3


@pytest.mark.slow
def test_distributions_are_complete_and_valid(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    wheel, source = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
    subprocess.run(check, check=True, capture_output=True)
    if (ROOT / ".git").exists():
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        with tarfile.open(source) as archive:
            packed = {name.partition("/")[2] for name in archive.getnames()}
        missing = {*tracked.splitlines()} - packed
        assert {name.partition("/")[0] for name in missing} <= {".ci"}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"ctxextend-{__version__}.dist-info/METADATA").decode()
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]
    assert {f"ctxextend/recipes/{name}.yaml" for name in builtin_recipes()} <= {*names}
    assert {
        f"ctxextend/schemas/{path.name}" for path in (ROOT / "tests" / "schemas").glob("*.json")
    } <= {*names}
    fields = message_from_string(metadata)
    assert fields["License-Expression"] == "Apache-2.0 AND PSF-2.0"
    assert fields.get_all("License-File") == ["LICENSE", "LICENSES/PSF-2.0.txt"]
    assert len(fields.get_all("Project-URL") or ()) == 5

    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
    ]
    subprocess.run([*install, str(tmp_path / "installed"), str(wheel)], check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    run = [sys.executable, "-m", "ctxextend"]
    for command in (
        ["resize", "tiny-gpt2", "--to", "256"],
        ["verify", "tiny-gpt2-256"],
        ["recipes", "gpt2-4096"],
    ):
        subprocess.run(
            [*run, *command], cwd=tmp_path, env=environment, check=True, capture_output=True
        )
    code = "import ctxextend; print(ctxextend.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(tmp_path / "installed"))
    assert BUNDLED["tiny-gpt2"].is_dir()


def required_distributions(requirements: list[str]) -> Iterator[Distribution]:
    """Yield the installed distributions that requirements need, without other extras."""
    found = set[str]()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
        if requirement.name in found or not (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:  # for another platform
            continue
        found.add(requirement.name)
        yield installed
        needed = [Requirement(text) for text in installed.requires or ()]
        waiting += [
            one
            for one in needed
            if not one.marker or any(one.marker.evaluate(extra) for extra in wanted)
        ]


def link_distributions(requirements: list[str], target: Path) -> None:
    """Link the files of installed distributions into another environment, as if installed there."""
    source = Path(sysconfig.get_paths()["purelib"])
    for installed in required_distributions(requirements):
        for name in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (target / name).exists():
                (target / name).symlink_to(source / name)


def readme_commands(*sections: str) -> list[str]:
    """Return the commands in sections of README, except those for a clone."""
    text = (ROOT / "README.md").read_text()
    parts = [part for part in text.split("\n## ") if part.splitlines()[0] in sections]
    assert len(parts) == len(sections)
    blocks = [
        block
        for part in parts
        for block in re.findall(r"```(sh|console)\n(.*?)```", part, re.DOTALL)
    ]
    lines = [(language, line) for language, body in blocks for line in body.splitlines()]
    commands = [
        line.removeprefix("$ ")
        for language, line in lines
        if language == "sh" or line.startswith("$ ")
    ]
    return [command for command in commands if not command.startswith("make ")]


@pytest.mark.slow
def test_commands_of_readme_run_in_an_environment_with_the_plain_wheel(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(tmp_path / "plain", with_pip=True)
    bin_folder = tmp_path / "plain" / "bin"
    python = str(bin_folder / "python")
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    target = Path(
        subprocess.run(
            [python, "-c", where], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    link_distributions(project["dependencies"], target)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "dist"),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "HF_HUB_OFFLINE": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    commands = readme_commands("Install", "Resize, verify, compare")
    assert commands[:2] == ["pip install ctxextend", "ctxextend demo"]
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=work, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if command == "ctxextend demo":
            assert "pip install 'ctxextend[train]'" in done.stderr
    # Jinja2 comes with torch.
    names = "'accelerate', 'datasets', 'peft', 'sentence_transformers', 'matplotlib'"
    code = (
        f"from importlib.util import find_spec; print([name for name in ({names}) if "
        "find_spec(name)])"
    )
    found = subprocess.run(
        [python, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert found.stdout == "[]\n"
