"""A resize as a plan made from shapes alone, which shows what it will do and then does it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layout, rewrite, write_rest
from ctxextend.checkpoints.safetensors_file import TensorFile, read_floats
from ctxextend.errors import ResizeError
from ctxextend.families.lookup import Architecture
from ctxextend.json_output import not_in_json
from ctxextend.plan.edits import (
    BufferPlan,
    TablePlan,
    make_buffer,
    makes_rows,
    method_name,
    plan_buffers,
    plan_edits,
    plan_tables,
)
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.output_files import (
    CARD_FILE,
    UNDECODED,
    card_text,
    consequences,
    edited_texts,
    hash_placeholders,
    index_text,
    nonfinite_warnings,
    output_recipe,
    plan_warnings,
)
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, REF_KEYS, CheckpointRef, Recipe, Resize
from ctxextend.tables.apply import OWN_FLAGS, explain_choice, resize_with_reserved
from ctxextend.tables.methods import METHODS


@dataclass(frozen=True)
class ResizePlan:
    """Everything a resize will do, known before it is done; `execute` does it.

    Attributes:
        model: The source, opened and recognised.
        settings: What was asked for.
        tables: What becomes of each position table, the one that reads the tokenizer's texts first.
        edits: Values that change in JSON files.
        dropped: Position buffers that are left out of the weights, by name.
        remade: Position buffers that are made anew at the new length.
    """

    model: OpenedModel = field(metadata=not_in_json)
    settings: Resize = field(metadata=not_in_json)
    tables: tuple[TablePlan, ...]
    edits: tuple[Edit, ...]
    dropped: tuple[str, ...]
    remade: tuple[BufferPlan, ...] = field(metadata=not_in_json)

    json_properties: ClassVar[Mapping[str, str]] = {
        "source": "ref.source",
        "revision": "checkpoint.source.revision",
        **{name: name for name in ("family", "method")},
        **{name: f"flags.{name}" for name in ("keep_first", "drop_last", *OWN_FLAGS)},
        "max_len_before": "common.max_len_before",
        "max_len_after": "common.max_len_after",
        **{name: name for name in ("config", "files", "bytes_to_write", "bytes_shareable", "notes")},
        "remade": "remade_names",
    }

    @property
    def ref(self) -> CheckpointRef:
        """The source as the user named it."""
        return self.model.ref

    @property
    def checkpoint(self) -> Checkpoint:
        """The source, its headers read."""
        return self.model.checkpoint

    @property
    def architecture(self) -> Architecture:
        """What the registry knows of the source."""
        return self.model.architecture

    @property
    def family(self) -> str:
        """The model type."""
        return self.architecture.family.model_type

    @property
    def method(self) -> str:
        """The method's name; `truncate` for shorter tables, `copy` for those that stay."""
        return method_name(self.settings, self.tables)

    @property
    def flags(self) -> SimpleNamespace:
        """The method's flags with their values; None for those that it does not take."""
        options = self.settings
        given = {"keep_first": options.kept_first, "drop_last": options.drop_last}
        return SimpleNamespace(**given | dict.fromkeys(OWN_FLAGS) | options.flags)

    @property
    def max_len_before(self) -> int:
        """Usable positions now of the table that is read first."""
        return self.tables[0].max_len_before

    @property
    def max_len_after(self) -> int:
        """Usable token positions wanted."""
        return self.settings.to

    @property
    def common(self) -> SimpleNamespace:
        """The lengths that all tables have; None where they differ."""
        before, after = {table.max_len_before for table in self.tables}, {table.max_len_after for table in self.tables}
        return SimpleNamespace(
            max_len_before=before.pop() if len(before) == 1 else None,
            max_len_after=after.pop() if len(after) == 1 else None,
        )

    @property
    def is_changed(self) -> bool:
        """Whether any table gets another length."""
        return any(table.is_changed for table in self.tables)

    @property
    def makes_rows(self) -> bool:
        """Whether new rows are made: False where tables get shorter or stay."""
        return makes_rows(self.tables)

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row that a longer table begins with stays as it is, bit for bit."""
        options = self.settings
        return all(options.kept_of(table.max_len_before) == table.max_len_before for table in self.tables)

    @property
    def consequences(self) -> str:
        """What the new length is worth before any training, in a sentence."""
        return consequences(self.settings, self.tables)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the plan is carried out."""
        return tuple(plan_warnings(self.model, self.settings, self.tables, self.edits, rewrites=bool(self.layouts)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What needs saying of how the reference was understood, and of the family."""
        families = {table.location.family.model_type: table.location.family.note for table in self.tables}
        particular = (f"Of {model_type}: {note}." for model_type, note in families.items() if note)
        return (*self.checkpoint.source.notes, *self.checkpoint.stored.notes, *particular)

    @property
    def config(self) -> Mapping[str, tuple[Any, Any]]:
        """Of each key that changes in config.json, what it was and what it becomes."""
        own = [edit for edit in self.edits if edit.file == self.checkpoint.config_file]
        return {edit.key: (edit.before, edit.after) for edit in own}

    @property
    def remade_names(self) -> tuple[str, ...]:
        """The names of the buffers that are made anew."""
        return tuple(buffer.name for buffer in self.remade)

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The new layout of every weights file that changes or gets another name, by its name in the output."""
        layouts = {}
        for file in self.checkpoint.weights:
            shapes: dict[str, tuple[int, ...]] = {
                table.name: (table.rows_after, table.hidden_size) for table in self.tables_in(file) if table.is_changed
            }
            shapes |= {buffer.name: buffer.shape for buffer in self.remade if buffer.name in file.entries}
            dropped = [name for name in self.dropped if name in file.entries]
            name = self.checkpoint.output_name(file)
            if shapes or dropped or name != self.checkpoint.relative(file):
                layouts[name] = plan_layout(file, shapes, dropped)
        return layouts

    @property
    def edits_index(self) -> bool:
        """Whether there is an index of shards, and it changes."""
        return self.checkpoint.index is not None and bool(self.layouts)

    @cached_property
    def texts(self) -> Mapping[str, bytes]:
        """Every text file that is edited or made, by its path below the output.

        Hashes that are not known yet stand in the recipe as `hash_placeholders`, which are as long.

        Raises:
            CheckpointError: A file of the source cannot be read.
        """
        checkpoint = self.checkpoint
        texts = edited_texts(checkpoint, self.edits)
        if self.edits_index:
            texts[checkpoint.index_file] = index_text(checkpoint, self.layouts, self.tables, self.dropped)
        texts[RECIPE_FILE] = output_recipe(self.model, self.settings, self.tables, hash_placeholders(self.tables))
        texts[CARD_FILE] = card_text(self.model, self.settings, self.tables, self.edits)
        return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}

    @property
    def rewritten(self) -> tuple[str, ...]:
        """Weights files of the output that are not copies."""
        return tuple(self.layouts)

    @property
    def edited(self) -> tuple[str, ...]:
        """Text files that exist in the source and change."""
        return tuple(sorted(self.texts.keys() & self.checkpoint.files))

    @property
    def created(self) -> tuple[str, ...]:
        """Text files that the source does not have."""
        return tuple(sorted(self.texts.keys() - self.checkpoint.files))

    @property
    def copied(self) -> tuple[str, ...]:
        """Files that are copied byte for byte."""
        return tuple(sorted(self.checkpoint.files - self.texts.keys() - set(self.rewritten)))

    @property
    def files(self) -> Mapping[str, Any]:
        """What becomes of each file, and why some are left out."""
        names = ("rewritten", "copied", "edited", "created")
        return {name: getattr(self, name) for name in names} | {"omitted": self.checkpoint.omitted}

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """The size in bytes of each file of the output."""
        texts = {name: len(text) for name, text in self.texts.items()}
        return file_sizes(self.checkpoint, self.copied, self.layouts) | texts

    @property
    def output_files(self) -> frozenset[str]:
        """Every file of the output."""
        return frozenset(self.file_sizes)

    @property
    def bytes_to_write(self) -> int:
        """Bytes of the whole output."""
        return sum(self.file_sizes.values())

    @property
    def bytes_shareable(self) -> int:
        """Bytes of the output in blocks that stay as they are, which a disk that can share them need not write."""
        copied = (self.file_sizes[name] for name in self.copied)
        return sum(copied) + sum(layout.shareable for layout in self.layouts.values())

    @property
    def default_output(self) -> Path:
        """Where the checkpoint goes if nothing else is said: ``<name>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.max_len_after}")

    def tables_in(self, file: TensorFile) -> list[TablePlan]:
        """Return the tables that a weights file holds."""
        return [table for table in self.tables if table.name in file.entries]

    def check_output(self, output: str | os.PathLike[str] | None = None, *, force: bool = False) -> None:
        """Raise OutputError where `execute` would refuse the output, without writing anything."""
        check_output(self._output(output), self.checkpoint.guarded, self.file_sizes, force=force)

    def execute(
        self,
        output: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
        progress: Progress = no_progress,
        check: Callable[[Path], None] = lambda folder: None,
    ) -> "ResizeResult":
        """Write the new checkpoint: complete under its name in one rename, or not at all.

        Args:
            output: The new folder; None is `default_output`.
            force: Replace an existing checkpoint folder at the last moment.
            progress: Called with the bytes written since the last call, and all that will be.
            check: Called with the finished folder before it takes its name; where it raises, nothing is left.

        Raises:
            OutputError: The output exists, cannot be written, does not fit, or must not be replaced.
            CheckpointError: The source cannot be read, or changed since the plan was made.
            ResizeError: The new table does not fit in memory.
        """
        began, folder, checkpoint = time.perf_counter(), self._output(output), self.checkpoint
        checkpoint.check_unchanged()
        texts, placeholders = dict(self.texts), hash_placeholders(self.tables)
        warnings, choices = list(self.warnings), list[str]()

        def written(count: int) -> None:
            progress(count, self.bytes_to_write)

        with atomic_folder(folder, checkpoint.guarded, self.file_sizes, force=force) as staged:
            for file in checkpoint.weights:
                tensors = {buffer.name: make_buffer(buffer) for buffer in self.remade if buffer.name in file.entries}
                for table in self.tables_in(file):
                    before = read_floats(file, table.name)
                    after = tensors[table.name] = self.resized(table, before)
                    for rows, placeholder in zip((before, after), placeholders[table.name], strict=True):
                        known = table_hash(rows).encode()
                        texts[RECIPE_FILE] = texts[RECIPE_FILE].replace(placeholder.encode(), known)
                    warnings += nonfinite_warnings(table, before, after)
                    choices += self._choice(table, before)
                name = checkpoint.output_name(file)
                if name in self.layouts:
                    rewrite(file, self.layouts[name], tensors, staged / name, written)
            write_rest(checkpoint, staged, self.copied, texts, written)
            size = sum((staged / name).stat().st_size for name in self.output_files)
            check(staged)
        seconds = round(time.perf_counter() - began, 3)
        return ResizeResult(self, folder, tuple(warnings), size, seconds, tuple(choices))

    def _output(self, output: str | os.PathLike[str] | None) -> Path:
        return self.default_output if output is None else Path(os.path.expanduser(output))  # noqa: PTH111 - never raises

    def choices(self) -> tuple[str, ...]:
        """Say what a method that goes by a table's own figures makes of them; for others no table is read.

        Raises:
            CheckpointError: The source cannot be read.
        """
        if not self.makes_rows or METHODS[self.method].explain is None:
            return ()
        files = [(table, self.checkpoint.holder(table.name)) for table in self.tables]
        return tuple(said for table, file in files for said in self._choice(table, read_floats(file, table.name)))

    def _choice(self, table: TablePlan, before: NDArray[Any]) -> Iterator[str]:
        """Yield what a method that goes by a table's figures made of them."""
        if table.rows_after > table.rows_before:
            said = explain_choice(before[table.reserved_rows :], table.max_len_after, self.settings)
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
            return resize_with_reserved(
                before, table.reserved_rows, table.rows_after - table.reserved_rows, self.settings
            )
        except MemoryError:
            raise ResizeError(
                f"A table of {table.rows_after:,} rows of {table.hidden_size:,} does not fit in this machine's memory.",
                "Give a smaller --to.",
            ) from None


@dataclass(frozen=True)
class ResizeResult:
    """What became of a plan; its JSON is the plan's, and its own fields.

    Attributes:
        plan: What was carried out, or only shown.
        output: The new folder.
        warnings: What the user should know, the plan's own first.
        bytes_written: Bytes of the new folder's files.
        seconds: How long it took, wall clock.
        choices: What a method that goes by a table's own figures made of them.
        dry_run: Whether the plan was only shown.
        verified: Whether the output was verified before it took its name.
    """

    plan: ResizePlan = field(metadata=not_in_json)
    output: Path
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    bytes_written: int = 0
    seconds: float = 0.0
    choices: tuple[str, ...] = ()
    dry_run: bool = False
    verified: bool = False

    json_properties: ClassVar[Mapping[str, str]] = {
        **{name: f"plan.{name}" for name in ("tables", "edits", "dropped")},
        **{key: f"plan.{name}" for key, name in ResizePlan.json_properties.items()},
    }


def plan_resize(reference: str | os.PathLike[str], to: int, method: str | None = None, **settings: Any) -> ResizePlan:
    """Plan a resize from a checkpoint's config and headers; nothing is written and no weight is read.

    Args:
        reference: A folder, a weights file, the name of a bundled checkpoint, or a Hub id, which is downloaded.
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: The name of one of `list_methods`; None is ``copy``, and must stand where the table gets shorter.
        settings: Any of these, by their names: ``keep_first`` and ``drop_last`` (positions at the start and the end
            that the method does not read), the method's own ``scope``, ``alpha``, ``seed``, ``sigma``, ``repeat`` and
            ``gain`` (see `list_methods`), ``part`` (which of several tables: encoder, decoder, text, …),
            ``mend_limits`` (make all files state the table's length even where it stays), ``keep_code`` (copy code in
            the folder too; nothing in it is run), ``revision``, ``subfolder`` and ``variant`` (which copy of the
            checkpoint), ``family`` (the model type to take it for), and for a model type that is not in the registry
            ``table`` (its tensor), ``config_key`` (the key that states its length) and ``offset`` (its rows before
            position 0).

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no learned position table that is known here.
        ResizeError: The length, the method or a flag cannot be served.
    """
    ref = {REF_KEYS[key]: settings.pop(key) for key in [*settings] if key in REF_KEYS}
    return plan_recipe(Recipe(CheckpointRef(os.fspath(reference), **ref), Resize(to, method=method, **settings)))


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
    tables = plan_tables(model, settings)
    return ResizePlan(model, settings, tables, plan_edits(model, tables), *plan_buffers(model.checkpoint, tables))


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


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's bytes, row by row, as it stands in every recipe."""
    import hashlib  # at use: a plan alone hashes nothing, and OpenSSL takes its time

    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()
