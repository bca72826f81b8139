"""A training run: its result, its interruption, and the folder beside its output by which it can be resumed.

NAME.training/
  run.json         the settings of the run, and the hashes of its source's table and of all its weights
  resized/         the resized checkpoint, if the run resizes first
  data.bin         the text as tokens; eval_data.bin that of --eval-data
  texts.json       the files that both are of
  saves/           the last saves; one that is being written has another name
  runs/            what tensorboard and the like write
"""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    created_folders,
    locked,
    os_errors_as_output_error,
    remove_atomically,
    remove_stale,
)
from ctxextend.errors import TrainingError
from ctxextend.json_output import Result, not_in_json
from ctxextend.recipe_file import MACHINE_KEYS

RUN_FILE = "run.json"
# transformers' name of a save; the step follows.
SAVE = "checkpoint-"
# Settings that may change when a run is resumed.
FREE = tuple(
    f"train.{name}"
    for name in ("steps", "per_device_batch_size", "eval_every", "save_every", "report_to", "copy_code", *MACHINE_KEYS)
)
PLANNED_STEPS = "planned_steps"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run."""

    path: Path
    keeps_saves: bool = True  # whether the run is saved at all; a comparison's are not

    @classmethod
    def for_output(cls, output: Path) -> "RunFolder":
        """Return the folder that belongs to an output."""
        return cls(output.with_name(f"{output.name}.training"))

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
    def planned_steps(self) -> int | None:
        """The steps that were asked for first, which gave the learning rates until an interruption."""
        noted = self.path / RUN_FILE
        return json.loads(noted.read_text("utf-8"))[PLANNED_STEPS] if noted.exists() else None

    def remove(self, steps: list[int] | None = None) -> None:
        """Remove the folder, or the saves of some steps; a killed removal leaves no part under their names."""
        with contextlib.suppress(OSError):
            for path in [self.path] if steps is None else [self.saves / f"{SAVE}{step}" for step in steps]:
                remove_atomically(path)


@contextlib.contextmanager
def open_run_folder(output: Path, settings: Mapping[str, Any], *, resume: bool, force: bool) -> Iterator[RunFolder]:
    """Create or reopen the folder of a run, and lock it; it is removed at the end if nothing was saved in it."""
    folder = RunFolder.for_output(output)
    path, noted = folder.path, folder.path / RUN_FILE
    remove_stale(path, "old")
    with os_errors_as_output_error(path), created_folders(path), contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except BlockingIOError:
            hint = "Wait for it, or choose another -o."
            raise TrainingError(f"Another run works in {path} just now.", hint) from None
        remove_stale(noted, "new")
        if any(path.iterdir()) and not noted.is_file():
            raise TrainingError(f"{path} is in the way: saves are kept under that name.", "Choose another -o.")
        before, settings = dict[str, Any](), json.loads(json.dumps(settings))  # whose tuples are lists then
        with contextlib.suppress(OSError, ValueError):  # what cannot be read was not noted
            before = json.loads(noted.read_text("utf-8"))
        if folder.step and (resume or not force):
            _check(folder, before, settings, resume=resume)
        if not resume or folder.save is None:
            before = {}
            remove_atomically(folder.saves)  # at once, and before anything else
            for other in sorted(path.iterdir(), key=lambda other: other == noted):
                if other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other)
                else:
                    other.unlink()
        planned_steps = before.get(PLANNED_STEPS, settings["train.steps"])
        with atomic_file(noted) as staged:
            staged.write_text(json.dumps({**settings, PLANNED_STEPS: planned_steps}, indent=2) + "\n", "utf-8")
        folder.saves.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if folder.save is None:
                folder.remove()


def _check(folder: RunFolder, before: Mapping[str, Any], settings: Mapping[str, Any], *, resume: bool) -> None:
    """Refuse to lose saves, and to resume another run."""
    path, saved, steps = folder.path, folder.step, settings["train.steps"]
    names = sorted({*before, *settings} - {*FREE, PLANNED_STEPS})
    changed = [name for name in names if before.get(name) != settings.get(name)]
    hint = "Resume it as it was begun, or begin anew with --force."
    if not resume:
        said, hint = "holds the saves of a run that was stopped", "Go on with --resume, or begin anew with --force."
    elif changed:
        runs = [
            {name: "not set" if one.get(name) is None else repr(one[name]) for name in changed}
            for one in (before, settings)
        ]
        words = (f"{name} was {runs[0][name]} and is {runs[1][name]}" for name in changed)
        said = f"holds the saves of another run: {'; '.join(words)}"
    elif steps < saved:
        said = f"holds the save of step {saved}, and --steps asks for {steps}"
    else:
        return
    raise TrainingError(f"{path} {said}.", hint)


class TrainingInterrupted(KeyboardInterrupt):
    """A training run was stopped by a signal, such as Ctrl-C, after `step`, which is saved in `folder`."""

    def __init__(self, signal: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}, which is saved in {folder}")
        self.signal, self.step, self.folder = signal, step, folder


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult(Result, shows="source output steps loss_before loss_after"):
    """A training run that finished."""

    output: Path  # the folder that was written
    source: str  # the checkpoint that was trained, as the user named it
    objective: str  # ``causal``, ``masked`` or ``distilled``
    trainable: str  # ``new``, ``positions`` or ``all``
    parameters: int  # number of trainable values
    steps: int  # optimizer steps
    batch_size: int  # sequences of a step, over all devices
    per_device_batch_size: int  # sequences that a device held at a time
    devices: int
    seq_len: int  # positions that a sequence could use
    window: int  # tokens of a sequence
    lr: float  # peak learning rate
    tokens: int  # trained on
    held_out_sequences: int  # on which the losses below are measured, always the same
    held_out_tokens: int  # that are predicted in them, over which the losses are the mean
    loss_before: float  # held-out, before the first step: nats per token, or the error of a distilled encoder
    loss_after: float  # of the weights that were written, those of `saved_step`
    loss_last: float  # after the last step
    loss_best: float  # the least that was measured
    best_step: int  # where it was measured; 0 is before the first step
    saved_step: int  # whose weights were written
    seconds: float  # wall clock of steps and evaluations, those before an interruption included
    peak_bytes: int | None  # peak memory of a process, or of its accelerator if it has one; None if unknown
    precision: str  # of the arithmetic
    notes: tuple[str, ...] = ()  # how the source was understood
    # What was logged, a mapping for each step or evaluation.
    log: tuple[Mapping[str, Any], ...] = field(default=(), metadata=not_in_json)
    is_first: bool = field(default=True, metadata=not_in_json)  # whether this process wrote the output
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)  # what the user should know

    json_properties: ClassVar = ("tokens_per_second",)

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second, without the time of evaluations."""
        evaluating = sum(line.get("eval_runtime", 0.0) for line in self.log)
        return self.tokens / (self.seconds - evaluating) if self.seconds > evaluating else math.nan
