"""A planned output, of a resize or a conversion, and the result of writing it."""

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoint.checkpoint import MODULES
from ctxextend.checkpoint.features import CONVERT
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.checkpoint.writing import Output, OutputFiles, write_output
from ctxextend.errors import OutputError, listed
from ctxextend.json_output import Result, not_in_json, to_json
from ctxextend.keywords import keyword_arguments
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.output import make_output
from ctxextend.plan import Plan, make_plan
from ctxextend.plan_notes import plan_notes
from ctxextend.positions.change import Change
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import plain_values
from ctxextend.serving.engine_statements import Statement, folder_facts, statements
from ctxextend.serving.for_engine import plan_for_engine, serving_command
from ctxextend.settings import (
    ATTENTION_WINDOWS,
    WITHOUT_POSITIONS,
    CheckpointRef,
    Convert,
    Resize,
    option_of,
)

if TYPE_CHECKING:
    from ctxextend.conversion.conversion import Conversion

Reference = str | os.PathLike[str]

# Properties in JSON: of all outputs, of those of a resize, and of a conversion.
OF_OUTPUTS = ("source", "revision", "files", "bytes_to_write", "edits")
OF_RESIZES = (
    "model_type",
    "method",
    "methods",
    "keep_first",
    "max_len_before",
    "max_len_after",
    "tables",
    "config",
    "dropped",
    "rebuilt_buffers",
)
OF_CONVERSIONS = (
    "model_type",
    "convert",
    "method",
    "max_len_before",
    "max_len_after",
    "tensors",
    "dropped_tensors",
)


class PlannedValues(Result, shows=()):
    """The values that a planned output and the result of writing it have in common."""

    notes: tuple[Note, ...]  # what to know before the output is used

    @property
    def _planned(self) -> "Planned":
        """The planned output."""
        raise NotImplementedError

    @property
    def json_properties(self) -> tuple[str, ...]:
        """The names of the values in JSON that are not fields."""
        if self._planned.plan.convert is None:
            return OF_OUTPUTS + OF_RESIZES
        return OF_OUTPUTS + OF_CONVERSIONS

    def to_json(self) -> dict[str, Any]:
        """Return the plain values that ``--json`` prints, without schema version and command."""
        values: dict[str, Any] = to_json(self)
        return values

    @property
    def warnings(self) -> tuple[str, ...]:
        """The texts of the notes that are warnings."""
        return tuple(note.text for note in self.notes if note.level is Level.WARNING)

    @property
    def source(self) -> str:
        """The reference of the checkpoint, as the user passed it."""
        return self._planned.base.ref.source

    @property
    def revision(self) -> str | None:
        """The Hub commit; None of other checkpoints."""
        return self._planned.plan.checkpoint.source.revision

    @property
    def files(self) -> OutputFiles:
        """The files of the output."""
        return self._planned.output.files

    @property
    def bytes_to_write(self) -> int:
        """The size of all files that are written."""
        return self._planned.output.bytes_to_write

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Every changed value in a JSON file."""
        return self._planned.plan.edits

    @property
    def method(self) -> str | None:
        """The method of the new length; None of a conversion without attention windows."""
        plan = self._planned.plan
        if plan.convert is None or plan.convert.scheme == ATTENTION_WINDOWS:
            return plan.method
        return None

    @property
    def max_len_before(self) -> int | None:
        """The context length before; None if that of tables differs."""
        if self._planned.plan.convert is not None:
            return self._planned.plan.max_len_before
        return _only([change.max_len_before for change in self._planned.plan.changes])

    @property
    def max_len_after(self) -> int | None:
        """The context length of the output; None if that of tables differs."""
        if self._planned.plan.convert is not None:
            return self._planned.plan.max_len_after
        return _only([change.max_len_after for change in self._planned.plan.changes])

    # Of a resize

    @property
    def model_type(self) -> str:
        """The model type of the output."""
        return self._planned.plan.model_type

    @property
    def methods(self) -> Mapping[str, str]:
        """The method with all settings for each longer table, by table name."""
        return self._planned.plan.methods

    @property
    def keep_first(self) -> int:
        """How many of the first rows are kept."""
        return self._planned.plan.settings.choice.keep_first

    @property
    def tables(self) -> tuple[Change, ...]:
        """What changes in all positions, by the name of the table or, without one, of a key."""
        return self._planned.plan.changes

    @property
    def config(self) -> dict[str, tuple[Any, Any]]:
        """The old and the new value of each changed key of the config."""
        config_file = self._planned.plan.checkpoint.config_file
        changed = [edit for edit in self.edits if edit.file == config_file]
        return {edit.key: (edit.before, edit.after) for edit in changed}

    @property
    def dropped(self) -> tuple[str, ...]:
        """Position buffers that are not written, because transformers creates them."""
        return self._planned.plan.dropped

    @property
    def rebuilt_buffers(self) -> tuple[str, ...]:
        """Position buffers that are rebuilt at the new length."""
        return self._planned.plan.buffers

    # Of a conversion

    @property
    def convert(self) -> dict[str, Any]:
        """The settings of a conversion, without defaults."""
        settings = self._planned.plan.convert
        return {} if settings is None else plain_values(settings)

    @property
    def tensors(self) -> Mapping[str, int]:
        """The number of tensors by how they are computed from those of the source."""
        if self._planned.conversion is None:
            return {"copied": len(self._planned.plan.checkpoint.weights.entries)}
        from ctxextend.conversion.conversion import count_origins

        return count_origins(self._planned.conversion)

    @property
    def dropped_tensors(self) -> tuple[str, ...]:
        """The tensors that the class of a twin has no place for."""
        if self._planned.conversion is None:
            return ()
        return tuple(self._planned.conversion.dropped)


def _only(lengths: list[int]) -> int | None:
    """Return the length of all tables; None if they differ."""
    return lengths[0] if len(set(lengths)) == 1 else None


@dataclass(frozen=True, eq=False, repr=False)
class Planned(PlannedValues, shows=("plan",)):
    """A planned output: what changes, what to know of it, and which files it has.

    Nothing is written before `execute`.
    """

    # Of a conversion to another model type: that of its twin in memory, whose limits change.
    plan: Plan = field(metadata=not_in_json)
    output: Output = field(metadata=not_in_json)
    notes: tuple[Note, ...]  # what to know before the output is used
    runtimes: tuple[Statement, ...]  # what each runtime does with the output
    # How tensors are computed by a conversion to another model type; else None.
    conversion: "Conversion | None" = field(default=None, metadata=not_in_json)

    @property
    def _planned(self) -> "Planned":
        return self

    @property
    def base(self) -> OpenedModel:
        """What is resized or converted."""
        if self.conversion is not None:
            return self.conversion.model
        return self.plan.model

    def without_weights(self) -> "Planned":
        """Return the same plan with an output of only edited and created files.

        Raises:
            MethodError: The weights change too, or the output is a GGUF file.
        """
        self.plan.checkpoint.check("--edit-only")
        return replace(self, output=make_output(self.plan, self.notes, edit_only=True))

    def with_links(self) -> "Planned":
        """Return the same plan with an output that links the weights files that stay as they are.

        Raises:
            MethodError: The output is a GGUF file.
        """
        self.plan.checkpoint.check("--link")
        output = self.output.with_links()
        linked = output.files.linked
        notes = list(self.notes)
        if not linked:
            text = "Nothing is linked: every weights file changes, or is converted to safetensors."
            notes.append(Note(Code.FILES, Level.NOTE, text))
        hard = [name for name, kind in linked.items() if kind == "hard"]
        symbolic = [name for name, kind in linked.items() if kind == "symbolic"]
        if hard:
            text = (
                f"Hard-linked: {listed(hard)}. Editing such a file in place edits it here and in "
                f"{self.plan.checkpoint.root}, and in any folder that has a link to it too."
            )
            notes.append(Note(Code.FILES, Level.NOTE, text))
        if symbolic:
            text = (
                f"Linked to the Hub cache: {listed(symbolic)}. The output has no weights without "
                "the cache, or on another computer: cp -RL makes a whole copy."
            )
            notes.append(Note(Code.FILES, Level.NOTE, text))
        return replace(self, output=output, notes=tuple(notes))

    def dry_run(self, output: Reference | None = None, *, force: bool = False) -> "ResizeResult":
        """Return the result that `execute` would have; a note says if it would fail.

        Args:
            output, force: As in `execute`.
        """
        planned = replace(self, output=self.output.at(output))
        notes = self.notes
        try:
            planned.output.check(force=force)
        except OutputError as error:
            notes = (*notes, Note(Code.FILES, Level.WARNING, f"This would fail: {error}"))
        return ResizeResult(planned=planned, notes=notes, dry_run=True)

    def execute(
        self,
        output: Reference | None = None,
        *,
        force: bool = False,
        progress: Progress = no_progress,
        check: Callable[[Path], None] | None = None,
    ) -> "ResizeResult":
        """Write the output to a temporary folder and rename it: it is complete or absent.

        Args:
            output: Output folder. Defaults to ``<name>-<N>`` in the current folder.
            force: Replace an existing checkpoint folder, once the new one is complete.
            progress: Called with the bytes written since the last call and the total.
            check: Called with the complete temporary folder before it is renamed; if it raises,
                nothing is written.

        Raises:
            OutputError: The output exists, cannot be written or replaced, or there is too little
                disk space.
            CheckpointError: The source cannot be read, or changed after it was planned.
            ResizeError: A new table does not fit in memory.
        """
        start = time.perf_counter()
        planned = replace(self, output=self.output.at(output))
        written = write_output(planned.output, force=force, progress=progress, check=check)
        written_notes = [Note(Code.TENSORS, Level.WARNING, text) for text in written.warnings]
        return ResizeResult(
            planned=planned,
            notes=(*self.notes, *written_notes),
            bytes_written=written.size,
            seconds=round(time.perf_counter() - start, 3),
        )


@dataclass(frozen=True, eq=False, repr=False)
class ResizeResult(PlannedValues, shows=("output", "seconds")):
    """The result of a resize or conversion; its JSON includes the values of the plan."""

    planned: Planned = field(metadata=not_in_json)
    notes: tuple[Note, ...]  # what to know of the output: those of the plan first
    bytes_written: int = 0  # total size of the output files
    seconds: float = 0.0  # wall-clock time
    dry_run: bool = False  # True if nothing was written
    verified: bool = False  # True if the output was verified before it was moved into place
    # With ``--tune``: a `TrainResult`, and a `Tuning`.
    train: Result | None = None
    tuning: Result | None = None

    @property
    def json_properties(self) -> tuple[str, ...]:
        """The names of the values in JSON that are not fields."""
        return (*super().json_properties, "output", "runtimes", "serve")

    @property
    def _planned(self) -> Planned:
        return self.planned

    @property
    def plan(self) -> Plan:
        """What changed."""
        return self.planned.plan

    @property
    def output(self) -> Path:
        """The output folder, or the output file."""
        return self.planned.output.path

    @property
    def runtimes(self) -> tuple[Statement, ...]:
        """What each runtime does with the output."""
        return self.planned.runtimes

    @property
    def serve(self) -> str | None:
        """The command that serves or converts the output with the engine that it is for.

        It is that of the engine or, of one without a command, Python code that loads the output.
        None if it is for no engine.
        """
        planned = self.planned
        if planned.plan.engine is None:
            return None
        command = serving_command(planned.plan, planned.runtimes, str(self.output))
        if not command and self.load_code is not None:
            command = f"python -c {shlex.quote(self.load_code)}"
        return command or None

    @property
    def add_weights(self) -> str | None:
        """The command that copies the weights and all other files; None if the output has them."""
        if self.planned.output.has_weights:
            return None
        # Here, since few resizes write no weights.
        from ctxextend.checkpoint.missing_weights import copy_command, download_command

        if self.plan.checkpoint.weights.is_remote:
            present = self.planned.output.texts
            return download_command(self.plan.checkpoint, present, self.output)
        return copy_command(self.plan.checkpoint, self.planned.output.texts, self.output)

    @property
    def load_code(self) -> str | None:
        """Python code that loads the output; None if its files are not enough to load it."""
        plan = self.planned.plan
        checkpoint = plan.checkpoint
        is_custom = plan.model.ref.table is not None or "auto_map" in checkpoint.config
        is_other_type = checkpoint.config.get("model_type", plan.model_type) != plan.model_type
        if is_custom or is_other_type or checkpoint.adapter_of is not None:
            return None
        if checkpoint.engine is not None:
            return None
        if not checkpoint.has_config or not self.planned.output.has_weights:
            return None
        variant = checkpoint.weights.variant
        if MODULES in checkpoint.copied:
            name = json.dumps(str(self.output))
            arguments = f', model_kwargs={{"variant": "{variant}"}}' if variant else ""
            load = f"SentenceTransformer({name}{arguments})"
            return f"from sentence_transformers import SentenceTransformer; {load}"
        name = json.dumps(str(self.output / checkpoint.model))
        arguments = f', variant="{variant}"' if variant else ""
        model_class = checkpoint.model_class or "AutoModel"
        load = f"{model_class}.from_pretrained({name}{arguments})"
        return f"from transformers import {model_class}; {load}"


def plan_checkpoint(ref: CheckpointRef, settings: Resize, *, only_headers: bool = False) -> Planned:
    """Open a checkpoint, plan its resize, and prepare its output.

    Args:
        ref: The checkpoint.
        settings: The length, the method and the engine.
        only_headers: Whether only the headers of weights on the Hub are read.

    Raises:
        RemoteWeightsError: `only_headers` is set, but values of tensors are needed.
        CtxextendError: As `plan_resize`.
    """
    model = open_model(ref, only_headers=only_headers)
    requested = {
        "--tune": settings.tune,
        "--for": settings.engine not in (None, model.checkpoint.engine),
    }
    model.checkpoint.check(*(flag for flag, value in requested.items() if value))
    if settings.engine is None and model.checkpoint.engine is None:
        return planned_resize(make_plan(model, settings))
    return planned_resize(plan_for_engine(model, settings))


def planned_resize(plan: Plan) -> Planned:
    """Prepare the output of a planned resize.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    runtimes: tuple[Statement, ...] = ()
    if plan.is_changed:
        runtimes = statements(folder_facts(plan))
    notes = plan_notes(plan, runtimes)
    return Planned(
        plan=plan,
        output=make_output(plan, notes),
        notes=notes,
        runtimes=runtimes,
    )


def planned_conversion(model: OpenedModel, settings: Convert) -> Planned:
    """Plan the conversion of an open checkpoint, and prepare its output.

    Raises:
        CtxextendError: As `convert`.
    """
    from ctxextend.conversion.convert import conversion_notes

    plan, conversion = plan_conversion(model, settings)
    runtimes = statements(folder_facts(plan))
    notes = conversion_notes(plan, conversion, runtimes)
    return Planned(
        plan=plan,
        output=make_output(plan, notes),
        notes=notes,
        runtimes=runtimes,
        conversion=conversion,
    )


def plan_conversion(model: OpenedModel, settings: Convert) -> tuple[Plan, "Conversion | None"]:
    """Plan the conversion of an open checkpoint, with how tensors are computed for a twin.

    Raises:
        CtxextendError: As `convert`.
    """
    model.checkpoint.check(CONVERT)
    # Here, since the rules of conversions take longer to import than a small resize to plan.
    from ctxextend.conversion.convert import plan_removal, plan_twin
    from ctxextend.conversion.find import find_conversion

    if settings.scheme == WITHOUT_POSITIONS:
        return plan_removal(model, settings), None
    conversion = find_conversion(model, settings)
    return plan_twin(conversion), conversion


WRITING = tuple(item.name for item in fields(Resize) if not option_of(item).in_recipe)


@keyword_arguments(CheckpointRef, Resize, without=WRITING)
def plan_resize(ref: CheckpointRef, settings: Resize) -> Planned:
    """Plan a resize from a checkpoint's config, headers and position tables; write nothing.

    Raises:
        CtxextendError: As `resize`, except OutputError.
    """
    return plan_checkpoint(ref, settings)
