"""A planned output, of a resize or a conversion, and the result of writing it."""

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.folder import MODULES
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.errors import MethodError
from ctxextend.json_output import Result, not_in_json
from ctxextend.keywords import keyword_arguments
from ctxextend.output.gguf_output import prepare_gguf
from ctxextend.output.output import Output
from ctxextend.output.prepare import prepare_output
from ctxextend.output.write import AnyOutput, check_writable, no_check, write_output
from ctxextend.plan.explain import Explanation, explain
from ctxextend.plan.for_runtime import RuntimePlan
from ctxextend.plan.opened_model import OpenedModel, open_model
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.runtimes.commands import export_task, file_command, serving_command
from ctxextend.settings import CheckpointRef, Convert, Resize, known_of
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.rope_types import NONE

if TYPE_CHECKING:
    from ctxextend.conversion.conversion import Conversion

Reference = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, repr=False)
class Planned(Result, shows=("plan",)):
    """A planned output: what changes, what that means, and which files it has.

    Nothing is written before `execute`.
    """

    plan: Plan = field(metadata=not_in_json)  # of a conversion: that of its twin's limits
    explanation: Explanation = field(metadata=not_in_json)
    output: AnyOutput = field(metadata=not_in_json)
    # The settings of a conversion; None of a resize.
    convert: Convert | None = field(default=None, metadata=not_in_json)
    # How tensors are computed by a conversion to another model type; else None.
    conversion: "Conversion | None" = field(default=None, metadata=not_in_json)

    @property
    def model(self) -> OpenedModel:
        """What the output is written from: the source or, of a conversion, its twin in memory."""
        return self.plan.model

    @property
    def source(self) -> OpenedModel:
        """What is resized or converted."""
        if self.conversion is not None:
            return self.conversion.model
        return self.plan.model

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to show before the output is written."""
        return self.explanation.warnings

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values: what changes, the files, and what that means."""
        values: dict[str, Any] = {
            "source": self.model.ref.source,
            "revision": self.plan.checkpoint.source.revision,
            "files": self.output.files,
            "bytes_to_write": self.output.bytes_to_write,
            "bytes_shareable": self.output.bytes_shareable,
            "notes": self.explanation.notes,
            "edits": self.plan.edits,
            "runtimes": self.explanation.runtimes,
        }
        if self.conversion is not None:
            return values | _conversion_values(self.conversion, self.plan)
        if self.convert is not None:
            return values | _removal_values(self.convert, self.plan)
        return values | _resize_values(self.plan)

    def without_weights(self) -> "Planned":
        """Return an output of only edited and created files.

        Raises:
            MethodError: The weights change too.
        """
        return prepare_plan(self.plan, edit_only=True)

    def with_links(self) -> "Planned":
        """Return an output that links the weights files that stay as they are.

        Raises:
            MethodError: The output is a GGUF file.
        """
        if not isinstance(self.output, Output):
            message = "--link does not apply to a GGUF file, which is written as a whole."
            raise MethodError(message, "Remove --link.")
        return replace(self, output=self.output.with_links())

    def check_output(self, output: Reference | None = None, *, force: bool = False) -> None:
        """Check that `execute` can write to an output folder, without writing anything.

        Raises:
            OutputError: It exists, cannot be written or replaced, or there is too little disk
                space.
        """
        check_writable(self.output, output, force=force)

    def execute(
        self,
        output: Reference | None = None,
        *,
        force: bool = False,
        progress: Progress = no_progress,
        check: Callable[[Path], None] = no_check,
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
        written = write_output(self.output, output, force=force, progress=progress, check=check)
        explanation = self.explanation
        return ResizeResult(
            planned=self,
            output=written.folder,
            warnings=(*explanation.warnings, *explanation.untrained, *written.warnings),
            bytes_written=written.size,
            seconds=round(time.perf_counter() - start, 3),
            choices=explanation.choices,
        )


def _resize_values(plan: Plan) -> dict[str, Any]:
    """Return the JSON values that only a resize has."""
    config_file = plan.checkpoint.config_file
    changed = [edit for edit in plan.edits if edit.file == config_file]
    return {
        "model_type": plan.model_type,
        "method": plan.method,
        "methods": plan.methods,
        "keep_first": plan.settings.choice.keep_first,
        "max_len_before": _only([table.max_len_before for table in plan.tables]),
        "max_len_after": _only([table.max_len_after for table in plan.tables]),
        "tables": plan.tables,
        "config": {edit.key: (edit.before, edit.after) for edit in changed},
        "dropped": plan.dropped,
        "rebuilt_buffers": [buffer.name for buffer in plan.rebuilt_buffers],
    }


def _only(lengths: list[int]) -> int | None:
    """Return the length of all tables; None if they differ."""
    return lengths[0] if len(set(lengths)) == 1 else None


def _conversion_values(conversion: "Conversion", twin: Plan) -> dict[str, Any]:
    """Return the JSON values that only a conversion has."""
    from ctxextend.conversion.conversion import count_origins

    return {
        "scheme": conversion.settings.scheme,
        "theta": conversion.settings.theta,
        "attention_window": conversion.settings.attention_window,
        "method": twin.method if conversion.twin.has_windows else None,
        "model_type_before": conversion.type_before,
        "model_type_after": conversion.twin.model_type,
        "model_class": conversion.model_class,
        "max_len_before": conversion.max_len_before,
        "max_len_after": twin.max_len_after,
        "added_parameters": conversion.added_parameters,
        "tensors": count_origins(conversion),
        "dropped_tensors": conversion.dropped,
    }


def _removal_values(settings: Convert, plan: Plan) -> dict[str, Any]:
    """Return the JSON values that only a conversion has, of one that keeps all tensors."""
    return {
        "scheme": settings.scheme,
        "theta": None,
        "attention_window": None,
        "method": None,
        "model_type_before": plan.model_type,
        "model_type_after": plan.model_type,
        "model_class": plan.checkpoint.model_class,
        "max_len_before": plan.max_len_before,
        "max_len_after": plan.max_len_after,
        "added_parameters": 0,
        "tensors": {"copied": len(plan.checkpoint.weights.entries)},
        "dropped_tensors": (),
    }


@dataclass(frozen=True, eq=False, repr=False)
class ResizeResult(Result, shows=("output", "seconds")):
    """The result of a resize or conversion; its JSON includes the values of the plan."""

    planned: Planned = field(metadata=not_in_json)
    output: Path  # output folder
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)  # the plan's first
    bytes_written: int = 0  # total size of the output files
    seconds: float = 0.0  # wall-clock time
    choices: tuple[str, ...] = ()  # settings that a method chose from each table's values
    dry_run: bool = False  # True if nothing was written
    verified: bool = False  # True if the output was verified before it was moved into place
    # The runtime that the output is for, and what it does with it.
    for_runtime: RuntimePlan | None = field(default=None, metadata=not_in_json)
    # The results of further steps: a `TrainResult`, a `Tuning`.
    training: Result | None = field(default=None, metadata=not_in_json)
    tuning: Result | None = field(default=None, metadata=not_in_json)

    @property
    def plan(self) -> Plan:
        """What changed."""
        return self.planned.plan

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values of the planned output, and of further steps."""
        steps = {
            "train": self.training,
            "tuning": self.tuning,
        }
        taken = {name: result for name, result in steps.items() if result is not None}
        values = {"files": self.planned.output.files_in(self.output), "serve": self.serve}
        return {**self.planned.json_more(), **values, **taken}

    @property
    def serve(self) -> str | None:
        """The command that serves or converts the output.

        None if no runtime was requested; a GGUF file is always served by llama.cpp.
        """
        if gguf_of(self.plan.checkpoint) is not None:
            statements = self.planned.explanation.runtimes
            if not statements:
                return None
            return file_command(statements[0], str(self.output), self.plan.max_len_after)
        if self.for_runtime is None:
            return None
        runtime = self.for_runtime.runtime
        if runtime.command:
            return serving_command(
                runtime,
                self.for_runtime.statement,
                str(self.output),
                self.plan.max_len_after,
                task=export_task(self.plan.checkpoint.model_class),
            )
        if self.load_code is None:
            return None
        return f"python -c {shlex.quote(self.load_code)}"

    @property
    def add_weights(self) -> str | None:
        """The command that copies the weights and all other files; None if the output has them."""
        if self.planned.output.has_weights:
            return None
        # Here, since few resizes write no weights.
        from ctxextend.output.missing_weights import copy_command, download_command

        if self.plan.checkpoint.weights.is_remote:
            present = self.planned.output.texts
            return download_command(self.plan.checkpoint, present, self.output)
        return copy_command(self.plan.checkpoint, self.planned.output.texts, self.output)

    @property
    def load_code(self) -> str | None:
        """Python code that loads the output; None if its files are not enough to load it."""
        plan = self.plan
        checkpoint = plan.checkpoint
        is_custom = plan.model.ref.table is not None or "auto_map" in checkpoint.config
        is_other_type = checkpoint.config.get("model_type", plan.model_type) != plan.model_type
        if is_custom or is_other_type or checkpoint.adapter_of is not None:
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


def prepare_resize(
    model: OpenedModel,
    settings: Resize,
    recorded: Mapping[str, MethodChoice] | None = None,
    *,
    edit_only: bool = False,
) -> Planned:
    """Plan the resize of an open checkpoint, and prepare its output.

    Args:
        model: The source.
        settings: The length and the method.
        recorded: Methods that a recipe records, by table name; they replace the one in `settings`.
        edit_only: Write only edited and created files, and no weights.

    Raises:
        CtxextendError: As `plan_resize`.
    """
    return prepare_plan(plan_model(model, settings, recorded), edit_only=edit_only)


def prepare_plan(plan: Plan, *, edit_only: bool = False) -> Planned:
    """Prepare the output of a planned resize.

    Raises:
        CheckpointError: A file to edit cannot be read.
        MethodError: `edit_only` is set, but the weights change too.
    """
    explanation = explain(plan)
    if gguf_of(plan.checkpoint) is not None:
        return _prepare_gguf_plan(plan, explanation, edit_only=edit_only)
    return Planned(
        plan=plan,
        explanation=explanation,
        output=prepare_output(plan, explanation, edit_only=edit_only),
    )


def _prepare_gguf_plan(plan: Plan, explanation: Explanation, *, edit_only: bool) -> Planned:
    """Prepare the output of a planned resize of a GGUF file.

    Raises:
        MethodError: `edit_only` is set: such a file states its metadata and its weights together.
    """
    if edit_only:
        message = "--edit-only does not apply to a GGUF file, which is written as a whole."
        raise MethodError(message, "Remove --edit-only.")
    return Planned(plan=plan, explanation=explanation, output=prepare_gguf(plan))


def prepare_convert(model: OpenedModel, settings: Convert) -> Planned:
    """Plan the conversion of an open checkpoint, and prepare its output.

    Raises:
        CtxextendError: As `convert`.
    """
    if settings.scheme == NONE:
        return _prepare_removal(model, settings)
    # Here, since the rules of conversions take longer to import than a small resize to plan.
    from ctxextend.conversion.convert import complete_settings, plan_twin, prepare_conversion
    from ctxextend.conversion.describe import explain_conversion
    from ctxextend.conversion.find import find_conversion

    conversion = find_conversion(model, settings)
    twin = plan_twin(conversion)
    explanation = explain_conversion(conversion, twin)
    convert = complete_settings(conversion, twin)
    return Planned(
        plan=twin,
        explanation=explanation,
        output=prepare_conversion(conversion, twin, convert, explanation),
        convert=convert,
        conversion=conversion,
    )


def _prepare_removal(model: OpenedModel, settings: Convert) -> Planned:
    """Plan the removal of the rotary positions of an open checkpoint, and prepare its output.

    Raises:
        CtxextendError: As `convert`.
    """
    from ctxextend.conversion.removal import complete_settings, explain_removal, prepare_removal
    from ctxextend.plan.removal_plan import plan_removal

    plan = plan_removal(model, settings)
    explanation = explain_removal(plan)
    convert = complete_settings(plan, settings)
    return Planned(
        plan=plan,
        explanation=explanation,
        output=prepare_removal(plan, convert, explanation),
        convert=convert,
    )


WRITING = tuple(item.name for item in fields(Resize) if not known_of(item).in_recipe)


@keyword_arguments(CheckpointRef, Resize, without=WRITING)
def plan_resize(ref: CheckpointRef, settings: Resize) -> Planned:
    """Plan a resize from a checkpoint's config, headers and position tables; write nothing.

    Raises:
        CtxextendError: As `resize`, except OutputError.
    """
    return prepare_resize(open_model(ref, reads_gguf=True), settings)
