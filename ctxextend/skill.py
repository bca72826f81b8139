"""Install the skill that teaches agents to use ctxextend, in the folders where they look for one.

A skill is a folder with a SKILL.md (agentskills.io). Ours is that file only, so that one rename
installs it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    completed,
    created_folders,
    os_errors_as_output_error,
)
from ctxextend.errors import OutputError
from ctxextend.shipped import shipped_folder

SKILL_NAME = "ctxextend"
SKILL_FILE = "SKILL.md"
# As in `hf skills add` (constants.AGENTS_SKILLS_* and CLAUDE_SKILLS_* of huggingface_hub).
AGENTS_FOLDER = Path(".agents", "skills")
CLAUDE_FOLDER = Path(".claude", "skills")
CLAUDE_VARIABLE = "CLAUDE_CONFIG_DIR"  # replaces ~/.claude
REINSTALL = "Install ctxextend again: pip install --force-reinstall ctxextend"
CANNOT_WRITE = "Run it in a folder that you can write, or pass --global to write to your home."


@dataclass(frozen=True)
class InstalledSkill:
    """Where the skill is, and whether it was there already."""

    folders: list[str]  # one per kind of agents, each with SKILL.md
    written: list[str]  # those of them that lacked it, or had another version


def install_skill(
    *, in_home: bool = False, claude: bool = False, force: bool = False
) -> InstalledSkill:
    """Write the skill to ``.agents/skills/ctxextend`` in the current folder.

    Args:
        in_home: Write to the home folder instead, for all projects.
        claude: Write to ``.claude/skills`` too, where Claude Code looks.
        force: Replace another SKILL.md. Other files in the folders always stay.

    Raises:
        OutputError: Another SKILL.md exists and `force` is false, or a file cannot be written.
            Nothing was written if another one exists.
    """
    text = skill_text()
    folders = [folder / SKILL_NAME for folder in _skill_folders(in_home, claude)]
    outdated = list[Path]()
    for folder in folders:
        installed = _installed_text(folder)
        if installed == text:
            continue
        if installed is not None and not force:
            message = f"{folder / SKILL_FILE} exists, and differs from the skill of this version."
            raise OutputError(message, "Replace it with --force.")
        outdated.append(folder)
    for folder in outdated:
        _write(folder / SKILL_FILE, text)
    return InstalledSkill([str(folder) for folder in folders], [str(folder) for folder in outdated])


def skill_text() -> bytes:
    """Return the SKILL.md that ships with the package."""
    path = shipped_folder("skills") / SKILL_NAME / SKILL_FILE
    with os_errors_as_output_error(path, hint=REINSTALL):
        return path.read_bytes()


def _skill_folders(in_home: bool, claude: bool) -> Iterator[Path]:
    """Yield the folders of skills, relative to the current folder or absolute."""
    if not in_home:
        yield AGENTS_FOLDER
        if claude:
            yield CLAUDE_FOLDER
        return
    home = _home()
    yield home / AGENTS_FOLDER
    if not claude:
        return
    configured = os.environ.get(CLAUDE_VARIABLE)
    if configured:
        yield Path(configured).expanduser() / CLAUDE_FOLDER.name
    else:
        yield home / CLAUDE_FOLDER


def _home() -> Path:
    """Return the home folder.

    Raises:
        OutputError: There is none.
    """
    error = OutputError("--global needs a home folder.", "Set HOME, or leave out --global.")
    if os.environ.get("HOME") == "":  # Python would take the root folder
        raise error
    try:
        return Path.home()
    except RuntimeError:
        raise error from None


def _installed_text(folder: Path) -> bytes | None:
    """Return the SKILL.md in a folder; None without one."""
    path = folder / SKILL_FILE
    with os_errors_as_output_error(path, hint=CANNOT_WRITE):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _write(path: Path, text: bytes) -> None:
    with os_errors_as_output_error(path, hint=CANNOT_WRITE):
        resolved = Path(os.path.realpath(path))
        with created_folders(resolved.parent), atomic_file(resolved) as staged:
            staged.write_bytes(text)
        completed.append(resolved)
