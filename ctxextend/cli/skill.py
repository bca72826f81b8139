"""`ctxextend skill`."""

from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic

FOR_CLAUDE = "Claude Code looks in .claude/skills: ctxextend skill --claude"


def skill(
    in_home: Annotated[bool, basic("--global", "For all projects: in ~/.agents/skills.")] = False,
    claude: Annotated[bool, basic("--claude", "Also for Claude Code: in .claude/skills.")] = False,
    force: Annotated[bool, basic("--force", "Replace another SKILL.md.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Install a skill with which coding agents use ctxextend.

    Examples:
        ctxextend skill
        ctxextend skill --global --claude

    Writes one file, .agents/skills/ctxextend/SKILL.md, and prints its folder.
    """
    from ctxextend.skill import install_skill

    console = Console(as_json, quiet)
    installed = install_skill(in_home=in_home, claude=claude, force=force)
    if not claude:
        console.note(FOR_CLAUDE)
    if not installed.written:
        console.note("It is there already.")
    console.data("\n".join(installed.folders))
    console.result("skill", installed)
