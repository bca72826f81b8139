"""What a command that was interrupted has kept, and how to go on: one line."""

import shlex
import sys
from pathlib import Path

RESUME = "Resume with the same command and --resume."
# Modules that write, as far as a command has imported them, each with the list of what it wrote.
RUN_FOLDERS = ("ctxextend.training.training_run", "opened")
OUTPUTS = ("ctxextend.checkpoint.atomic_output", "completed")
WRITTEN = (RUN_FOLDERS, OUTPUTS)


def describe_stop() -> str:
    """Return what an interrupted command has kept, and how to go on."""
    module, registry = RUN_FOLDERS
    runs = list(getattr(sys.modules.get(module), registry, ()))
    saved = list[str]()
    for run in runs:
        if run.keeps_saves and run.step and run.path.exists():
            saved.append(f"after step {run.step}, saved in {run.path}")
    if saved:
        return f"Stopped {'; '.join(saved)}. {RESUME}"
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
    return "Stopped: nothing was written."
