"""A resize as a plan made from shapes alone, which shows what it will do and then does it."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.length_limits import Edit, limit_edits
from ctxextend.checkpoints.rewrite import file_sizes, rewrite, write_rest
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import ResizeError
from ctxextend.plan.buffers import make_buffer, plan_buffers
from ctxextend.plan.cautions import cautions, nonfinite
from ctxextend.plan.changes import Changes
from ctxextend.plan.configedits import config_edits
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.outputtexts import Hashes, consequences, output_texts
from ctxextend.plan.tableplan import TablePlan, plan_tables
from ctxextend.recipe import CheckpointRef, Recipe, Resize
from ctxextend.tables.apply import OWN_FLAGS, explain_choice, resize_with_reserved
from ctxextend.tables.methods import METHODS

__all__ = ["ResizePlan", "ResizeResult", "plan_model", "plan_recipe", "plan_resize", "resize"]

Progress = Callable[[int], None]


@dataclass(frozen=True)
class ResizePlan(Changes):
    """Everything a resize will do, known before it is done; `execute` does it.

    Attributes: those of `Changes`.
    """

    @property
    def consequences(self) -> str:
        """What the new length is worth before any training, in a sentence."""
        return consequences(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the plan is carried out."""
        return tuple(cautions(self))

    @property
    def notes(self) -> tuple[str, ...]:
        """What needs saying of how the reference was understood, and of the family."""
        families = {table.place.family.model_type: table.place.family.note for table in self.tables}
        particular = (f"Of {model_type}: {note}." for model_type, note in families.items() if note)
        return (*self.checkpoint.source.notes, *self.checkpoint.stored.notes, *particular)

    @cached_property
    def bytes_to_write(self) -> int:
        """Bytes of the whole output."""
        return sum(self.file_sizes.values())

    @cached_property
    def bytes_shareable(self) -> int:
        """Bytes of the output in blocks that stay as they are, which a disk that can share them need not write."""
        copied = (self.file_sizes[name] for name in self.copied)
        return sum(copied) + sum(layout.shareable for layout in self.layouts.values())

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """The size in bytes of each file of the output."""
        texts = {name: len(text) for name, text in output_texts(self, {}).items()}
        return file_sizes(self.checkpoint, self.copied, self.layouts) | texts

    def check_output(self, output: str | os.PathLike[str] | None = None, *, force: bool = False) -> None:
        """Raise OutputError where `execute` would refuse the output, without writing anything."""
        check_output(self._output(output), self.checkpoint.guarded, self.file_sizes, force=force)

    def execute(
        self,
        output: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
        progress: Progress = lambda written: None,
        check: Callable[[Path], None] = lambda folder: None,
    ) -> "ResizeResult":
        """Write the new checkpoint: complete under its name in one rename, or not at all.

        Args:
            output: The new folder; None is `default_output`.
            force: Replace an existing checkpoint folder at the last moment.
            progress: Called with the bytes written since the last call.
            check: Called with the finished folder before it takes its name; where it raises, nothing is left.

        Raises:
            OutputError: The output exists, cannot be written, does not fit, or must not be replaced.
            CheckpointError: The source cannot be read, or changed since the plan was made.
            ResizeError: The new table does not fit in memory.
        """
        began, folder = time.perf_counter(), self._output(output)
        self.checkpoint.check_unchanged()
        with atomic_folder(folder, self.checkpoint.guarded, self.file_sizes, force=force) as staged:
            hashes, warnings, choices = self._write_weights(staged, progress)
            write_rest(self.checkpoint, staged, self.copied, lambda: output_texts(self, hashes), progress)
            size = sum((staged / name).stat().st_size for name in self.output_files)
            check(staged)
        seconds = time.perf_counter() - began
        return ResizeResult(self, folder, (*self.warnings, *warnings), size, seconds, tuple(choices))

    def _output(self, output: str | os.PathLike[str] | None) -> Path:
        return self.default_output if output is None else Path(os.path.expanduser(output))  # noqa: PTH111 - never raises

    def _write_weights(self, folder: Path, progress: Progress) -> tuple[Hashes, list[str], list[str]]:
        hashes: dict[str, tuple[str, str]] = {}
        warnings, choices = list[str](), list[str]()
        for file in self.checkpoint.weights:
            tensors = {}
            for table in self.tables_in(file):
                before = read_floats(file, table.name)
                tensors[table.name] = self.resized(table, before)
                hashes[table.name] = table_hash(before), table_hash(tensors[table.name])
                warnings += nonfinite(table, before, tensors[table.name])
                choices += self._choice(table, before)
            tensors |= {plan.name: make_buffer(plan) for plan in self.remade if plan.name in file.entries}
            name = self.checkpoint.output_name(file)
            if name in self.layouts:
                rewrite(file, self.layouts[name], tensors, folder / name, progress)
        return hashes, warnings, choices

    def choices(self) -> tuple[str, ...]:
        """Say what a method that goes by a table's own figures makes of them; for others no table is read.

        Raises:
            CheckpointError: The source cannot be read.
        """
        if not self.makes_rows or METHODS[self.method].explain is None:
            return ()
        held = [
            (table, read_floats(file, table.name)) for file in self.checkpoint.weights for table in self.tables_in(file)
        ]
        return tuple(said for table, before in held for said in self._choice(table, before))

    def _choice(self, table: TablePlan, before: NDArray[Any]) -> Iterator[str]:
        """Yield what a method that goes by a table's figures made of them."""
        if table.rows_after > table.rows_before:
            said = explain_choice(before[table.offset :], table.max_len_after, self.settings.options)
            yield from [f"{table.name}: {said}"] if said else []

    def resized(self, table: TablePlan, before: NDArray[Any]) -> NDArray[Any]:
        """Return a table's rows at its new length.

        Args:
            table: One of `tables`.
            before: Its rows now, shape (rows_before, hidden_size).

        Returns:
            Shape (rows_after, hidden_size), the dtype of `before`.

        Raises:
            ResizeError: It does not fit in memory.
        """
        try:
            return resize_with_reserved(before, table.offset, table.rows_after - table.offset, self.settings.options)
        except MemoryError:
            raise ResizeError(
                f"A table of {table.rows_after:,} rows of {table.hidden_size:,} does not fit in this machine's memory.",
                "Give a smaller --to.",
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, in the words of ``--json``."""
        options, config_file = self.settings.options, self.checkpoint.config_file
        return {
            "source": self.ref.source,
            "revision": self.checkpoint.source.revision,
            "family": self.family,
            "method": self.method,
            "keep_first": options.kept_first,
            "drop_last": options.drop_last,
            **{flag: options.flags.get(flag) for flag in OWN_FLAGS},
            "max_len_before": _common(table.max_len_before for table in self.tables),
            "max_len_after": _common(table.max_len_after for table in self.tables),
            "tables": [table.as_dict() for table in self.tables],
            "config": {edit.key: [edit.before, edit.after] for edit in self.edits if edit.file == config_file},
            "edits": [edit.as_dict() for edit in self.edits],
            "dropped": list(self.dropped),
            "remade": [plan.name for plan in self.remade],
            "files": {
                "rewritten": list(self.rewritten),
                "copied": list(self.copied),
                "edited": list(self.edited),
                "created": list(self.created),
                "omitted": dict(self.checkpoint.omitted),
            },
            "bytes_to_write": self.bytes_to_write,
            "bytes_shareable": self.bytes_shareable,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class ResizeResult:
    """A new checkpoint that was written.

    Attributes:
        plan: What was carried out.
        output: The new folder.
        warnings: What the user should know, the plan's own first.
        bytes_written: Bytes of the new folder's files.
        seconds: How long it took, wall clock.
        choices: What a method that goes by a table's own figures made of them.
    """

    plan: ResizePlan
    output: Path
    warnings: tuple[str, ...]
    bytes_written: int
    seconds: float
    choices: tuple[str, ...] = ()


def plan_resize(
    reference: str | os.PathLike[str],
    to: int,
    method: str | None = None,
    *,
    keep_first: int | None = None,
    drop_last: int = 0,
    scope: str | None = None,
    alpha: float | None = None,
    seed: int | None = None,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
    part: str | None = None,
    table: str | None = None,
    config_key: str | None = None,
    offset: int = 0,
    mend_limits: bool = False,
    keep_code: bool = False,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
) -> ResizePlan:
    """Plan a resize from a checkpoint's config and headers; nothing is written and no weight is read.

    Args:
        reference: A folder, a weights file, the name of a bundled checkpoint, or a Hub id, which is downloaded.
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: The name of one of `list_methods`; None is ``copy``, and must stand where the table gets shorter.
        keep_first: Positions at the start that the method neither reads nor changes; None is the method's own
            default: 20 for ``stretch``, 0 for all others.
        drop_last: Positions at the end that are no source for new rows.
        scope: For ``sinusoidal``: ``new`` rows (the default) or ``all``.
        alpha: For ``hierarchical``: the weight of the first digit, above 0, below 1 and not 0.5; None is 0.4.
        seed: For ``random``: the seed of what is drawn, ≥ 0; None is 0.
        sigma: For ``bands``: rows of the Gaussian that parts slow from fast, ≥ 0; None is chosen, as the next two.
        repeat: For ``bands``: the first of the rows that repeat, and one behind the last, offset rows not counted.
        gain: For ``bands``: by how much rows are moved away from their mean, above 0.
        part: Which of a model's tables: encoder, decoder, text, …; None is all.
        table: The whole name of the table, for a model type that is not in the registry.
        config_key: With `table`: the key that states its length, with dots where configs are nested.
        offset: With `table`: its rows in front of position 0.
        mend_limits: Make config, tokenizer and side files state the table's length even where it stays.
        keep_code: Copy code that lies in the folder too, which is left out else; nothing in it is run.
        revision: A branch, tag or commit of the Hub.
        subfolder: The folder below `reference` that holds the checkpoint.
        variant: Which copy of the weights, such as ``fp16``.
        family: The model type to take it for; None is what config.json says.

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no learned position table that is known here.
        ResizeError: The length, the method or a flag cannot be served.
    """
    own = scope, alpha, seed, sigma, repeat, gain
    settings = Resize(to, method, keep_first, drop_last, *own, part, mend_limits, keep_code)
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family, table, config_key, offset)
    return plan_recipe(Recipe(ref, settings))


def plan_recipe(recipe: Recipe) -> ResizePlan:
    """Plan the resize that a recipe asks for; see `plan_resize`.

    Raises:
        CtxextendError: As `plan_resize`.
        ResizeError: The recipe asks for no resize.
    """
    if recipe.resize is None:
        raise ResizeError("The recipe asks for no resize.", "Say to what length: resize with to.")
    return plan_model(open_model(recipe.checkpoint, typed=recipe.typed), recipe.resize)


def plan_model(model: OpenedModel, settings: Resize) -> ResizePlan:
    """Plan the resize of a checkpoint that is open already; see `plan_resize`.

    Raises:
        CheckpointError: As `plan_resize`.
        ResizeError: As `plan_resize`.
    """
    model = model.with_code() if settings.keep_code else model
    checkpoint = model.checkpoint
    tables = plan_tables(model, settings)
    config = config_edits(checkpoint, model.architecture, tables) if checkpoint.has_config else ()
    edits = (*config, *_limit_edits(model, tables))
    return ResizePlan(model, settings, tables, edits, *plan_buffers(checkpoint, tables))


def _limit_edits(model: OpenedModel, tables: tuple[TablePlan, ...]) -> Iterator[Edit]:
    """Yield the edits of each tokenizer's limits, by the first table that reads its texts."""
    first = {place.tokenizer: name for place, name in reversed(model.tables) if place.tokenizer is not None}
    for table in tables:
        tokenizer = table.place.tokenizer
        if tokenizer is not None and first[tokenizer] == table.name:
            lengths = table.max_len_before, table.max_len_after
            yield from limit_edits(model.checkpoint, *lengths, tokenizer, mend=table.is_mended)


def resize(
    reference: str | os.PathLike[str],
    to: int,
    method: str | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Plan a resize and carry it out: `plan_resize` and `ResizePlan.execute` in one.

    Args:
        reference: As in `plan_resize`.
        to: As in `plan_resize`.
        method: As in `plan_resize`.
        output: The new folder; None is ``<name>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder at the last moment.
        settings: The other arguments of `plan_resize`, by their names.

    Raises:
        CtxextendError: As `plan_resize` and `ResizePlan.execute`.
    """
    return plan_resize(reference, to, method, **settings).execute(output, force=force)


def _common(lengths: Iterable[int]) -> int | None:
    """Return the length that all tables have; None where they disagree."""
    distinct = set(lengths)
    return distinct.pop() if len(distinct) == 1 else None


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's bytes, row by row, as it stands in every recipe."""
    import hashlib  # at use: a plan alone hashes nothing, and OpenSSL takes its time

    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()
