"""What a command that was interrupted has kept, and how to go on: one line."""

import shlex
import sys
from pathlib import Path

# Commands with --resume; of others that train, the same command resumes.
WITH_RESUME = ("train", "run")
# What commands that write no checkpoint do. There is nothing to resume, and the same command would
# take as long again.
WITHOUT_OUTPUT = {
    "demo": "kept",
    "evaluate": "measured",
    "families": "printed",
    "inspect": "inspected",
    "methods": "printed",
    "recipes": "printed",
    "verify": "verified",
}
RESUME = "Resume with the same command and --resume."
RESUME_OR_START_OVER = "Resume with the same command; --force starts over."
START_AGAIN = "Run the same command again."
# Modules that write, as far as a command has imported them, each with the list of what it wrote.
RUN_FOLDERS = ("ctxextend.training.training_run", "opened")
OUTPUTS = ("ctxextend.checkpoint.atomic_output", "completed")
WRITTEN = (RUN_FOLDERS, OUTPUTS)


def describe_stop(command: str | None) -> str:
    """Return what an interrupted command has kept, and how to go on.

    The name of the command is None before it is known.
    """
    module, registry = RUN_FOLDERS
    runs = list(getattr(sys.modules.get(module), registry, ()))
    saved = list[str]()
    for run in runs:
        if run.keeps_saves and run.step and run.path.exists():
            saved.append(f"after step {run.step}, saved in {run.path}")
    if saved:
        resume = RESUME if command in WITH_RESUME else RESUME_OR_START_OVER
        return f"Stopped {'; '.join(saved)}. {resume}"
    module, registry = OUTPUTS
    here = Path.cwd()
    complete = list[str]()
    for path in getattr(sys.modules.get(module), registry, ()):
        # What a run writes for itself is not an output.
        is_of_run = any(parent.suffix == ".training" for parent in path.parents)
        if path.exists() and not is_of_run:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            complete.append(shlex.quote(str(shown)))
    if complete:
        are = "is" if len(complete) == 1 else "are"
        return f"Stopped: {', '.join(complete)} {are} complete."
    if command in WITHOUT_OUTPUT:
        return f"Stopped: nothing was {WITHOUT_OUTPUT[command]}."
    return f"Stopped: nothing was written. {START_AGAIN}"
