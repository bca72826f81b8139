"""The commands that serve or convert a folder."""

import shlex

from ctxextend.runtimes.schema import Runtime, RuntimeStatement


def serving_command(
    runtime: Runtime, statement: RuntimeStatement | None, folder: str, max_len: int
) -> str:
    """Return the command that serves a folder, or converts it for a runtime.

    Args:
        runtime: The runtime, which has a command.
        statement: What it does with the folder, by a rule if there is one.
        folder: The path of the folder.
        max_len: The context length, in tokens.
    """
    if folder.startswith("-"):  # not parsed as an option
        folder = f"./{folder}"
    command = runtime.command.format(folder=shlex.quote(folder), max_len=max_len)
    if statement is not None and statement.option:
        command = f"{command} {statement.option}"
    return command
