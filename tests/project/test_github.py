"""What GitHub reads: workflows, templates, and the settings of Dependabot."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.json_schemas import check_schema
from tests.helpers.repository import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CHOOSER = GITHUB / "ISSUE_TEMPLATE" / "config.yml"
FORMS = sorted({*CHOOSER.parent.glob("*.yml")} - {CHOOSER})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs(path: Path) -> Iterator[Any]:
    yield from read(path)["jobs"].values()


def steps(path: Path) -> Iterator[Any]:
    for job in jobs(path):
        yield from job["steps"]


def test_workflows_match_their_schema() -> None:
    names = [path.stem for path in WORKFLOWS]
    assert names == ["docs", "engines", "lowest", "newest", "release", "tests"]
    check_schema("github-workflows", *WORKFLOWS)


def test_templates_match_their_schemas() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "model-type"]
    check_schema("github-issue-forms", *FORMS)
    check_schema("github-issue-config", CHOOSER)


def test_dependabot_matches_its_schema_and_names_files() -> None:
    path = GITHUB / "dependabot.yml"
    check_schema("dependabot", path)
    for update in read(path)["updates"]:
        for name in update.get("exclude-paths", ()):
            assert (ROOT / name).is_file()


def test_workflow_steps_are_valid_shell_and_name_make_targets() -> None:
    for path in WORKFLOWS:
        for step in steps(path):
            command = step.get("run", "")
            subprocess.run(["bash", "-n", "-c", command], check=True)
            if command.startswith("make "):
                dry_run = [*command.split(), "--dry-run"]
                subprocess.run(dry_run, cwd=ROOT, check=True, capture_output=True)


def test_workflows_name_files() -> None:
    for path in WORKFLOWS:
        names = re.findall(r"[\w/-]+\.(?:txt|toml|py)\b", path.read_text())
        assert not [name for name in names if not (ROOT / name).is_file()], path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_end(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}
    for job in jobs(path):
        assert job["timeout-minutes"] < 360  # GitHub's own limit


def test_python_versions_of_metadata_and_workflows_agree() -> None:
    versions: list[str] = []
    for text in PROJECT["classifiers"]:
        match = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text)
        if match:
            versions.append(match[1])
    workflow = read(GITHUB / "workflows" / "tests.yml")
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"
    lowest = read(GITHUB / "workflows" / "lowest.yml")
    (setup,) = (step for step in lowest["jobs"]["test"]["steps"] if "with" in step)
    assert setup["with"]["python-version"] == versions[0]
