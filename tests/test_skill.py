"""`ctxextend skill`: where the skill is written, and what is never replaced."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ctxextend import skill
from ctxextend.cli.app import build_app
from tests.helpers.json_schemas import check
from tests.helpers.repository import ROOT

TEXT = (ROOT / "skills" / "ctxextend" / "SKILL.md").read_bytes()
AGENTS = Path(".agents/skills/ctxextend")
CLAUDE = Path(".claude/skills/ctxextend")
FILE = "SKILL.md"


def invoke(*flags: str) -> Result:
    return CliRunner().invoke(build_app(), ["skill", *flags])


def written_files() -> list[str]:
    """Return the files in the current folder."""
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def test_skill_writes_the_shipped_file_and_prints_its_folder() -> None:
    done = invoke()
    assert done.exit_code == 0
    assert done.stdout == f"{AGENTS}\n"
    assert "ctxextend skill --claude" in done.stderr
    assert written_files() == [f"{AGENTS}/{FILE}"]
    assert (AGENTS / FILE).read_bytes() == TEXT


def test_skill_claude_writes_for_claude_code_too() -> None:
    done = invoke("--claude")
    assert done.stdout == f"{AGENTS}\n{CLAUDE}\n"
    assert done.stderr == ""
    assert (CLAUDE / FILE).read_bytes() == TEXT


def test_skill_global_writes_to_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv(skill.CLAUDE_VARIABLE, raising=False)
    done = invoke("--global", "--claude")
    assert done.stdout == f"{tmp_path / AGENTS}\n{tmp_path / CLAUDE}\n"
    assert (tmp_path / CLAUDE / FILE).read_bytes() == TEXT
    assert written_files() == []

    monkeypatch.setenv(skill.CLAUDE_VARIABLE, str(tmp_path / "configured"))
    configured = invoke("--global", "--claude")
    assert configured.stdout.splitlines()[1] == f"{tmp_path}/configured/skills/ctxextend"
    assert (tmp_path / "configured" / "skills" / "ctxextend" / FILE).read_bytes() == TEXT


def test_skill_uses_the_folders_of_hf_skills_add() -> None:
    from huggingface_hub import constants

    assert constants.AGENTS_SKILLS_LOCAL_PATH == skill.AGENTS_FOLDER
    assert Path("~") / skill.AGENTS_FOLDER == constants.AGENTS_SKILLS_GLOBAL_PATH
    assert constants.CLAUDE_SKILLS_LOCAL_PATH == skill.CLAUDE_FOLDER


def test_skill_again_writes_nothing() -> None:
    invoke()
    before = (AGENTS / FILE).stat().st_mtime_ns
    again = invoke("--json")
    assert json.loads(again.stdout)["written"] == []
    assert (AGENTS / FILE).stat().st_mtime_ns == before
    assert "there already" in invoke().stderr


def test_skill_replaces_another_file_only_with_force_and_keeps_the_others() -> None:
    CLAUDE.mkdir(parents=True)
    (CLAUDE / FILE).write_text("mine")
    (CLAUDE / "notes.md").write_text("mine too")
    refused = invoke("--claude")
    assert refused.exit_code == 1
    assert f"{CLAUDE / FILE} exists, and differs" in refused.stderr
    assert "Replace it with --force." in refused.stderr
    assert (CLAUDE / FILE).read_text() == "mine"
    assert not AGENTS.exists()

    forced = invoke("--claude", "--force", "--json")
    result = json.loads(forced.stdout)
    check(result, "skill")
    assert result["folders"] == result["written"] == [str(AGENTS), str(CLAUDE)]
    assert (CLAUDE / FILE).read_bytes() == TEXT
    assert (CLAUDE / "notes.md").read_text() == "mine too"


def test_skill_writes_through_a_link_between_the_folders() -> None:
    Path(".agents/skills").mkdir(parents=True)
    Path(".claude").mkdir()
    Path(".claude/skills").symlink_to("../.agents/skills")
    assert invoke("--claude").exit_code == 0
    assert (CLAUDE / FILE).read_bytes() == TEXT
    assert Path(".claude/skills").is_symlink()


def test_skill_says_why_a_file_cannot_be_written() -> None:
    Path(".agents").write_text("a file")
    failed = invoke()
    assert failed.exit_code == 1
    assert f"{AGENTS / FILE} could not be written" in failed.stderr
    assert "--global" in failed.stderr


def test_skill_leaves_nothing_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    failed = invoke()
    assert failed.exit_code == 1
    assert list(Path().iterdir()) == []


def test_skill_global_needs_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    done = invoke("--global")
    assert done.exit_code == 1
    assert "--global needs a home folder." in done.stderr


def test_skill_global_expands_the_folder_of_claude(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(skill.CLAUDE_VARIABLE, "~/settings")
    done = invoke("--global", "--claude")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "settings" / "skills" / "ctxextend" / "SKILL.md").is_file()


def test_skill_names_a_reinstall_if_the_package_lacks_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxextend.skill.shipped_folder", lambda name: tmp_path / name)
    done = invoke()
    assert done.exit_code == 1
    assert "pip install --force-reinstall ctxextend" in done.stderr
