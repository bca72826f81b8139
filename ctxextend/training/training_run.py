"""A training run: its result, its interruption, and the folder next to its output from which it is
resumed.

NAME.training/
  run.json         settings of the run, and hashes of the source's table and of all its weights
  resized/         the resized checkpoint, if the run resizes first
  data.bin         the text of --data as token ids; eval_data.bin is that of --eval-data
  texts.json       the files that both were read from
  saves/           the last saved states; one that is being written has another name
  runs/            logs of experiment trackers, such as tensorboard
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.checkpoints import atomic_output
from ctxextend.errors import TrainingError, size_text
from ctxextend.json_output import Result, not_in_json
from ctxextend.recipe_file import MACHINE_KEYS

RUN_FILE = "run.json"
SAVE = "checkpoint-"  # transformers' prefix of a saved state; the step follows
CHANGEABLE = tuple(  # settings that may differ when a run is resumed
    f"train.{name}"
    for name in (
        "steps",
        "per_device_batch_size",
        "eval_every",
        "save_every",
        "report_to",
        "copy_code",
        *MACHINE_KEYS,
    )
)
PLANNED_STEPS = "planned_steps"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run."""

    path: Path
    keeps_saves: bool = True  # False for a comparison, which cannot be resumed

    @classmethod
    def for_output(cls, output: Path) -> "RunFolder":
        """Return the run folder of an output."""
        return cls(output.with_name(f"{output.name}.training"))

    @property
    def saves(self) -> Path:
        """The folder of saved states."""
        return self.path / "saves"

    @property
    def steps(self) -> list[int]:
        """The steps of complete saved states, last first."""
        numbers = [path.name.removeprefix(SAVE) for path in self.saves.glob(f"{SAVE}*")]
        return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)

    @property
    def step(self) -> int:
        """The step of the last saved state; 0 if there is none."""
        return max(self.steps, default=0)

    @property
    def save(self) -> Path | None:
        """The folder of the last complete saved state."""
        return self.saves / f"{SAVE}{self.step}" if self.steps else None

    @property
    def planned_steps(self) -> int | None:
        """The steps of the first start, which set the learning rate schedule until an
        interruption.
        """
        run_file = self.path / RUN_FILE
        return json.loads(run_file.read_text("utf-8"))[PLANNED_STEPS] if run_file.exists() else None

    def remove(self, steps: list[int] | None = None) -> None:
        """Remove the folder, or the saved states of some steps; if killed, none is left incomplete
        under its name.
        """
        with suppress(OSError):
            for path in (
                [self.path] if steps is None else [self.saves / f"{SAVE}{step}" for step in steps]
            ):
                atomic_output.remove_atomically(path)


@contextmanager
def open_run_folder(
    output: Path, settings: Mapping[str, Any], *, resume: bool, force: bool
) -> Iterator[RunFolder]:
    """Create or reopen the folder of a run, and lock it; on exit it is removed if it contains no
    saved state.
    """
    folder = RunFolder.for_output(output)
    path = folder.path
    run_file = folder.path / RUN_FILE
    atomic_output.remove_stale(path, "old")
    with (
        atomic_output.os_errors_as_output_error(path),
        atomic_output.created_folders(path),
        ExitStack() as stack,
    ):
        try:
            stack.enter_context(atomic_output.locked(path))
        except BlockingIOError:
            raise TrainingError(
                f"Another run is using {path}.", "Wait for it, or choose another -o."
            ) from None
        atomic_output.remove_stale(run_file, "new")
        if any(path.iterdir()) and not run_file.is_file():
            hint = "Training saves its state under this name. Choose another -o."
            raise TrainingError(f"{path} exists and is not a training run.", hint)
        before, settings = dict[str, Any](), json.loads(json.dumps(settings))  # tuples become lists
        with suppress(OSError, ValueError):  # an unreadable file counts as empty
            before = json.loads(run_file.read_text("utf-8"))
        if folder.step and (resume or not force):
            _check_settings(folder, before, settings, resume=resume)
        if not resume or folder.save is None:
            before = {}  # saved states are removed first, so that no run resumes from half of them
            for other in sorted(
                path.iterdir(), key=lambda other: (other != folder.saves, other == run_file)
            ):
                atomic_output.remove_atomically(other)
        planned_steps = before.get(PLANNED_STEPS, settings["train.steps"])
        with atomic_output.atomic_file(run_file) as staged:
            staged.write_text(
                json.dumps({**settings, PLANNED_STEPS: planned_steps}, indent=2) + "\n", "utf-8"
            )
        folder.saves.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if folder.save is None:
                folder.remove()


def _check_settings(
    folder: RunFolder, before: Mapping[str, Any], settings: Mapping[str, Any], *, resume: bool
) -> None:
    """Raise TrainingError if the run would discard saved states or resume another run."""
    path = folder.path
    saved = folder.step
    steps = settings["train.steps"]
    names = sorted({*before, *settings} - {*CHANGEABLE, PLANNED_STEPS})
    changed = [name for name in names if before.get(name) != settings.get(name)]
    hint = "Resume it with the same settings, or restart with --force."
    if not resume:
        problem, hint = (
            "contains an interrupted run",
            "Resume it with --resume, or restart with --force.",
        )
    elif changed:
        was, now = (
            {k: repr(v) for k, v in values.items() if v is not None}
            for values in (before, settings)
        )
        changes = (
            f"{name} was {was.get(name, 'not set')} and is {now.get(name, 'not set')}"
            for name in changed
        )
        problem = f"contains a different run: {'; '.join(changes)}"
    elif steps < saved:
        problem = f"contains a run at step {saved}, but --steps is {steps}"
    else:
        return
    raise TrainingError(f"{path} {problem}.", hint)


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult(Result, shows="source output steps loss_before loss_after"):
    """The result of a finished training run."""

    output: Path  # the folder that was written
    source: str  # the reference of the checkpoint, as the user passed it
    objective: str  # ``causal``, ``masked``, ``distilled`` or ``contrastive``
    distill: float  # weight of distillation next to another objective; 0 without
    trainable: str  # one of `TRAINABLE`
    lora: int | None  # rank of adapters, in addition to a table
    parameters: int  # trainable parameters
    steps: int  # optimizer steps
    batch_size: int  # sequences per step, over all devices
    per_device_batch_size: int  # the micro-batch
    devices: int
    sharding: str | None  # ``fsdp2`` with ``--fsdp``
    seq_len: int  # positions available to a sequence
    window: int  # tokens per sequence
    lr: float  # peak learning rate
    tokens: int  # trained on
    held_out_sequences: int  # for the losses below, the same at each evaluation
    held_out_tokens: int  # predicted in them; the losses are means over these
    loss_before: float  # held-out, before the first step: nats per token, or the distillation loss
    loss_after: float  # of the saved weights, those of `saved_step`
    loss_last: float  # after the last step
    loss_best: float  # the lowest measured
    best_step: int  # its step; 0 is before the first step
    saved_step: int  # the step of the saved weights
    seconds: float  # wall clock of steps and evaluations, including those before an interruption
    peak_bytes: (
        int | None
    )  # peak memory of a process, or of its accelerator if it has one; None if unknown
    precision: str  # of the computation
    short_positions: int | None = (
        None  # those that the base has; None if unknown, or if sequences use no others
    )
    loss_short: tuple[float, float] | None = (
        None  # `loss_before` and `loss_after` of tokens at these positions
    )
    loss_long: tuple[float, float] | None = (
        None  # of tokens at other positions; both are None for encoders
    )
    notes: tuple[str, ...] = ()  # how the reference was resolved, skipped files, …
    log: tuple[Mapping[str, Any], ...] = field(
        default=(), metadata=not_in_json
    )  # one per logged step or evaluation
    is_first: bool = field(
        default=True, metadata=not_in_json
    )  # whether this process wrote the output
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    json_properties: ClassVar = ("tokens_per_second",)

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second, excluding evaluations."""
        evaluating = sum(line.get("eval_runtime", 0.0) for line in self.log)
        return self.tokens / (self.seconds - evaluating) if self.seconds > evaluating else math.nan


@dataclass(frozen=True)
class DeviceMemory:
    """The estimated peak memory of each of several devices."""

    devices: int
    per_device_batch_size: int  # the micro-batch
    bytes: int
    fsdp_bytes: int | None  # with ``--fsdp``; None for one device

    def __str__(self) -> str:
        return size_text(self.bytes) + (
            f" each, {size_text(self.fsdp_bytes)} with --fsdp" if self.fsdp_bytes else ""
        )


@dataclass(frozen=True, eq=False, repr=False)
class TrainingPlan(Result, shows="source parameters memory"):
    """What a training run would train, and the memory that it would need."""

    output: Path  # the folder that a run would write
    source: str  # the reference of the checkpoint, as the user passed it
    trainable: str  # one of `TRAINABLE`
    parameters: int  # trainable parameters
    model_parameters: int  # all parameters
    precision: str  # of the computation
    memory: tuple[
        DeviceMemory, ...
    ]  # one for each number of devices that the batch can be split across
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = field(metadata=not_in_json)
    dry_run: bool = True
