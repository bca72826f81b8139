"""The folder beside an output that holds an unfinished training run, so that it can be resumed.

NAME.training/
  run.json         the settings of the run, and the hash of its source's table
  resized/         the resized checkpoint, if the run resizes first
  tokens.bin       the text; eval_tokens.bin the text of --eval-data
  train_log.jsonl  the losses so far
  saves/           the last saves; one that is being written has another name
  runs/            what tensorboard and the like write
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    created_folders,
    locked,
    os_errors_as_output_error,
    remove_at_once,
    remove_stale,
)
from ctxextend.errors import TrainingError

RUN_FILE = "run.json"
# transformers' name of a save; the step follows.
SAVE = "checkpoint-"
# Settings that may change when a run is resumed.
FREE = tuple(f"train.{name}" for name in ("steps", "micro_batch", "eval_every", "save_every", "report_to", "keep_code"))
# The key of the steps that were asked for first, which gave the learning rates until the interruption.
BEGUN_FOR = "begun for"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run."""

    path: Path
    keeps_saves: bool = True  # whether the run is saved at all; a comparison's are not

    @classmethod
    def beside(cls, output: Path) -> "RunFolder":
        """Return the folder that belongs to an output."""
        return cls(output.with_name(f"{output.name}.training"))

    @property
    def log(self) -> Path:
        """The losses so far."""
        return self.path / "train_log.jsonl"

    @property
    def saves(self) -> Path:
        """The folder of saves."""
        return self.path / "saves"

    @property
    def steps(self) -> list[int]:
        """The steps of complete saves, the last first."""
        numbers = [path.name.removeprefix(SAVE) for path in self.saves.glob(f"{SAVE}*")]
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    @property
    def step(self) -> int:
        """The step of the last save; 0 if there is none."""
        return max(self.steps, default=0)

    @property
    def save(self) -> Path | None:
        """The last complete save."""
        return self.saves / f"{SAVE}{self.step}" if self.steps else None

    @property
    def settings(self) -> dict[str, Any]:
        """What `open_run_folder` wrote down of the run; empty if nothing is readable."""
        try:
            found = json.loads((self.path / RUN_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            found = None
        return found if isinstance(found, dict) else {}

    @property
    def begun_for(self) -> int | None:
        """The steps that were asked for first; None if unknown."""
        steps = self.settings.get(BEGUN_FOR)
        return steps if isinstance(steps, int) else None

    def remove(self, steps: list[int] | None = None) -> None:
        """Remove the folder, or the saves of some steps; a killed removal leaves no part under their names."""
        with contextlib.suppress(OSError):
            for path in [self.path] if steps is None else [self.saves / f"{SAVE}{step}" for step in steps]:
                remove_at_once(path)


@contextlib.contextmanager
def open_run_folder(output: Path, settings: Mapping[str, Any], *, resume: bool, force: bool) -> Iterator[RunFolder]:
    """Create or reopen the folder of a run, and lock it; it is removed at the end if nothing was saved in it.

    The settings of the run are plain values, with ``train.steps``. `resume` continues from the last save, if there is
    one; `force` discards saves.

    Raises:
        TrainingError: It holds the saves of another run, or another process works in it.
        OutputError: It cannot be created.
    """
    folder = RunFolder.beside(output)
    remove_stale(folder.path, "old")
    with contextlib.ExitStack() as stack:
        stack.enter_context(os_errors_as_output_error(folder.path))
        stack.enter_context(created_folders(folder.path))
        try:
            stack.enter_context(locked(folder.path))
        except BlockingIOError:
            hint = "Wait for it, or choose another -o."
            raise TrainingError(f"Another run works in {folder.path} just now.", hint) from None
        remove_stale(folder.path / RUN_FILE, "new")
        _check(folder, settings, resume=resume, force=force)
        if not resume or folder.save is None:
            remove_at_once(folder.saves)  # at once, and before anything else
            for path in sorted(folder.path.iterdir(), key=lambda path: path.name == RUN_FILE):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        noted = {**settings, BEGUN_FOR: folder.begun_for or settings["train.steps"]}
        with atomic_file(folder.path / RUN_FILE) as staged:
            staged.write_text(json.dumps(noted, indent=2) + "\n", "utf-8")
        folder.saves.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if folder.save is None:
                folder.remove()


def _check(folder: RunFolder, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
    """Refuse to touch what is not ours, to lose saves, and to resume another run."""
    path, saved, steps = folder.path, folder.step, settings["train.steps"]
    if any(path.iterdir()) and not (path / RUN_FILE).is_file():
        raise TrainingError(f"{path} is in the way: saves are kept under that name.", "Choose another -o.")
    if not saved or (force and not resume):
        return
    if not resume:
        raise TrainingError(
            f"{path} holds the saves of a run that was stopped.", "Go on with --resume, or begin anew with --force."
        )
    before = folder.settings
    names = sorted({*before, *settings} - {*FREE, BEGUN_FOR})
    if changed := [name for name in names if before.get(name) != settings.get(name)]:
        said = "; ".join(f"{name} was {before.get(name)!r} and is {settings.get(name)!r}" for name in changed)
        raise TrainingError(
            f"The run in {path} was another: {said}.", "Resume it as it was begun, or begin anew with --force."
        )
    if steps < saved:
        raise TrainingError(
            f"{path} holds the save of step {saved}, and --steps asks for {steps}.",
            f"Go on with --steps {saved} or more, or begin anew with --force.",
        )
