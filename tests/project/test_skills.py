"""The skill for agents: its format, its commands, and what reads its folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from ctxextend.cli.app import build_app
from tests.helpers.gguf_files import write_gguf
from tests.helpers.hub_server import serve
from tests.helpers.page_sections import BLOCK
from tests.helpers.repository import ROOT
from tests.helpers.trainings import command_flags
from tests.project.test_docs import LINK, linked_file, publish

SKILLS = ROOT / "skills"
SKILL_NAME = "ctxextend"
SKILL_FILE = "SKILL.md"
SKILL = SKILLS / SKILL_NAME / SKILL_FILE
PAGES = (SKILL, SKILLS / "README.md")
TEXT = SKILL.read_text()
# The fields of agentskills.io/specification, and the longest value of each.
FIELDS = {"name": 64, "description": 1024, "license": 100, "compatibility": 500}
CODE = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Flags of other programs that the texts name.
OTHER_FLAGS = {"--skill", "--agent", "--yes"}


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def lines_of_blocks(page: Path) -> list[str]:
    """Return the commands of a page's blocks."""
    lines: list[str] = []
    for match in BLOCK.finditer(page.read_text()):
        assert match["language"] == "sh"
        lines += match["body"].splitlines()
    return lines


def test_skill_has_the_front_matter_of_the_standard() -> None:
    _, front, body = TEXT.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert {"name", "description"} <= set(fields) <= set(FIELDS)
    for name, value in fields.items():
        assert 0 < len(value) <= FIELDS[name]
    assert fields["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", fields["name"])
    assert "Use it when" in fields["description"]
    assert fields["license"] == "Apache-2.0"
    assert body.startswith("\n# ")
    assert len(TEXT.splitlines()) < 200


def test_marketplace_names_the_skill() -> None:
    marketplace = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    assert marketplace["name"] == SKILL_NAME
    (plugin,) = marketplace["plugins"]
    assert plugin["name"] == SKILL_NAME
    (folder,) = plugin["skills"]
    assert ROOT / plugin["source"] / folder == SKILL.parent


def test_skill_commands_are_valid() -> None:
    group: Any = get_command(build_app())
    context = group.make_context("ctxextend", ["methods"])
    found = 0
    for line in lines_of_blocks(SKILL):
        program, *arguments = shlex.split(line.partition(" ||")[0])
        if program != "ctxextend":
            continue
        name, *others = arguments
        group.commands[name].make_context(name, others, parent=context)
        found += 1
    assert found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_skill_prose_names_commands_and_flags_that_exist(page: Path) -> None:
    flags = command_flags()
    every = set().union(*flags.values(), {"--help", "--help-all"}, OTHER_FLAGS)
    assert set(FLAG.findall(prose(page))) <= every
    for code in CODE.findall(prose(page)):
        words = code.removeprefix("ctxextend ").split()
        if not words or words[0] not in flags:
            assert not code.startswith("ctxextend ") or words[0] == "COMMAND", code
            continue
        own = {*flags[words[0]], "--help", "--help-all"}
        assert set(FLAG.findall(code)) <= own, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_skill_links_exist(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        file = linked_file(page, target)
        assert file is None or file.exists(), target
        # The skill is installed without the repository.
        assert page != SKILL or "://" in target


@pytest.mark.slow
def test_skill_commands_run(tmp_path: Path) -> None:
    documents = [json.dumps({"text": f"{path.name} {path.read_text()}"}) for path in PAGES]
    Path("articles.jsonl").write_text("\n".join(documents * 4))
    write_gguf(Path("model.gguf"))
    with serve() as hub:
        publish(hub, tmp_path / "published")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {
            "PATH": path,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
        }
        for line in lines_of_blocks(SKILL):
            command = re.sub(r"^pip install ", "pip install --dry-run --no-index ", line)
            command = re.sub(r"--steps \d+", "--steps 2", command)
            subprocess.run(["bash", "-c", command], env=environment, check=True)
    assert Path("longer.gguf").is_file()
    assert Path("gpt2-4096-trained/config.json").is_file()
