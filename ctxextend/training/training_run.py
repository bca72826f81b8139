"""The folder of a training run, next to its output, from which the run is resumed.

NAME.training/
  run.json         settings of the run, and the fingerprint of the source's weights
  resized/         the resized checkpoint, if the run resizes first
  data.bin         the text as token ids
  texts.json       the files that it was read from
  saves/           the last saved state; one that is being written has another name
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctxextend.checkpoint import atomic_output
from ctxextend.errors import TrainingError
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.recipe import MACHINE_KEYS, Recipe, plain_values

RUN_FILE = "run.json"
SAVE = "checkpoint-"  # transformers' prefix of a saved state; the step follows
# Settings of training that may differ when a run is resumed.
CHANGEABLE = (
    "steps",
    "per_device_batch_size",
    "eval_every",
    *MACHINE_KEYS,
)
PLANNED_STEPS = "planned_steps"
# Run folders that were opened, to say what they keep if the command is interrupted.
opened: list["RunFolder"] = []


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run."""

    path: Path
    keeps_saves: bool = True  # False for a tuning, which cannot be resumed

    @classmethod
    def for_output(cls, output: Path) -> "RunFolder":
        """Return the run folder of an output."""
        return cls(output.with_name(f"{output.name}.training"))

    @property
    def saves(self) -> Path:
        """The folder of saved states."""
        return self.path / "saves"

    @property
    def step(self) -> int:
        """The step of the last complete saved state; 0 if there is none."""
        numbers = [path.name.removeprefix(SAVE) for path in self.saves.glob(f"{SAVE}*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    @property
    def save(self) -> Path | None:
        """The folder of the last complete saved state; None if there is none."""
        if not self.step:
            return None
        return self.saves / f"{SAVE}{self.step}"

    @property
    def planned_steps(self) -> int | None:
        """The steps of the first start, which set the learning rate; None of a dry run."""
        steps: int | None = _read_settings(self.path / RUN_FILE).get(PLANNED_STEPS)
        return steps

    def remove(self) -> None:
        """Remove the folder; if killed, none is left incomplete under its name."""
        with suppress(OSError):
            atomic_output.remove_atomically(self.path)

    def remove_earlier_saves(self) -> None:
        """Remove all saved states but the last; none is left incomplete under its name."""
        with suppress(OSError):
            for path in [*self.saves.iterdir()]:
                if path != self.save:
                    atomic_output.remove_atomically(path)


def run_settings(recipe: Recipe, source: OpenedModel) -> dict[str, Any]:
    """Return what identifies a run, by name: the settings of its steps, and its source.

    A run is only resumed with the same ones, except `CHANGEABLE`.
    """
    steps: dict[str, Any] = {"source": recipe.checkpoint}
    for name in ("convert", "resize", "train"):
        steps[name] = getattr(recipe, name)
    settings = dict[str, Any]()
    for name, step in steps.items():
        if step is not None:
            values = plain_values(step, defaults=True)
            settings |= {f"{name}.{key}": value for key, value in values.items()}
    settings["fingerprint of all weights"] = source.checkpoint.weights.fingerprint()
    return settings


@contextmanager
def open_run_folder(
    output: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    force: bool,
    keeps_saves: bool = True,
) -> Iterator[RunFolder]:
    """Create or reopen the folder of a run, and lock it; see `run_settings` for `settings`.

    On exit it is removed if it contains no saved state.

    Raises:
        TrainingError: Another process uses the folder, it is not a training run, it contains the
            saved state of another run, or of a run that `resume` and `force` do not mention.
        OutputError: The folder cannot be written.
    """
    folder = replace(RunFolder.for_output(output), keeps_saves=keeps_saves)
    path = folder.path
    run_file = path / RUN_FILE
    atomic_output.remove_leftovers(path)
    with (
        atomic_output.os_errors_as_output_error(path),
        atomic_output.created_folders(path),
        ExitStack() as stack,
    ):
        try:
            stack.enter_context(atomic_output.locked(path))
        except BlockingIOError:
            message = f"Another run is using {path}."
            raise TrainingError(message, "Wait for it, or choose another --output.") from None
        atomic_output.remove_leftovers(run_file)
        if any(path.iterdir()) and not run_file.is_file():
            hint = "Training saves its state under this name. Choose another --output."
            raise TrainingError(f"{path} exists and is not a training run.", hint)
        if folder.step and (resume or not force):
            _check_settings(folder, settings, resume=resume)
        planned_steps = settings["train.steps"]
        is_resumed = resume and folder.save is not None
        if is_resumed:
            planned_steps = folder.planned_steps or planned_steps
        opened.append(folder)
        if not is_resumed:
            # Saved states first, the settings last: so no run resumes from half of the states, and
            # a killed one can be removed again.
            others = [other for other in path.iterdir() if other not in (folder.saves, run_file)]
            for part in (folder.saves, *others, run_file):
                atomic_output.remove_atomically(part)
        text = json.dumps({**settings, PLANNED_STEPS: planned_steps}, indent=2) + "\n"
        with atomic_output.atomic_file(run_file) as staged:
            staged.write_text(text, "utf-8")
        folder.saves.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if folder.save is None:
                folder.remove()


def _read_settings(run_file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        settings: dict[str, Any] = json.loads(run_file.read_text("utf-8"))
        return settings
    return {}


def _check_settings(folder: RunFolder, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Check that a run is to be resumed, and is the one that was interrupted."""
    before = _read_settings(folder.path / RUN_FILE)
    now: dict[str, Any] = json.loads(json.dumps(settings))  # as read: tuples become lists
    ignored = {PLANNED_STEPS, *(f"train.{name}" for name in CHANGEABLE)}
    changes = []
    for name in sorted({*before, *now} - ignored):
        if before.get(name) != now.get(name):
            was = _value_text(before.get(name))
            changes.append(f"{name} was {was} and is {_value_text(now.get(name))}")
    hint = "Resume it with the same settings, or restart with --force."
    if not resume:
        problem = "contains an interrupted run"
        hint = "Resume it with --resume, or restart with --force."
    elif changes:
        problem = f"contains a different run: {'; '.join(changes)}"
    elif now["train.steps"] < folder.step:
        problem = f"contains a run at step {folder.step}, but --steps is {now['train.steps']}"
    else:
        return
    raise TrainingError(f"{folder.path} {problem}.", hint)


def _value_text(value: Any) -> str:
    return "not set" if value is None else repr(value)
