"""Annotations of a GitHub workflow, which GitHub shows on the lines of a pull request.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
(`::error file=…,line=…,title=…::message`); escapes as in `packages/core/src/command.ts` of
https://github.com/actions/toolkit.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.errors import CheckpointError, without_tokens

if TYPE_CHECKING:
    from ctxextend.inspection.inspection_result import Inspection

WORKSPACE = "GITHUB_WORKSPACE"  # the root of the repository, in a workflow
ERROR_TITLE = "ctxextend inspect"


def annotations(inspection: "Inspection") -> Iterator[str]:
    """Yield an annotation for each limit that disagrees: at its line if it is in the repository."""
    from ctxextend.checkpoint.json_edit import line_of_key, read_text

    root = os.path.realpath(os.environ.get(WORKSPACE) or Path.cwd())
    for limit in inspection.limits:
        if limit.agrees:
            continue
        path = Path(inspection.folder) / limit.file
        properties = dict[str, str]()
        # A file in the repository may be a link to another folder, and keeps its name.
        absolute = Path(os.path.realpath(path.parent), path.name)
        if absolute.is_relative_to(root):
            properties["file"] = absolute.relative_to(root).as_posix()
            if path.suffix == ".json":
                with suppress(CheckpointError):  # it changed after it was read
                    line = line_of_key(read_text(path), limit.key)
                    if line is not None:
                        properties["line"] = str(line)
        properties["title"] = f"{limit.file} {limit.key}"
        message = f"{inspection.source}: {limit.value}: {limit.reason}."
        if limit.remark:
            message += f"\nNote: {limit.remark}"
        if limit.fix is not None:
            message += f"\nFix: {limit.fix}"
        yield workflow_command(properties, message)


def workflow_command(properties: Mapping[str, str], message: str) -> str:
    """Return an error as a workflow command on one line, with all values escaped."""
    stated = list[str]()
    for key, value in properties.items():
        # Here, a colon and a comma have a meaning too.
        escaped = _escaped(value).replace(":", "%3A").replace(",", "%2C")
        stated.append(f"{key}={escaped}")
    return f"::error {','.join(stated)}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return without_tokens(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
