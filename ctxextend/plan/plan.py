"""A resize as a plan made from shapes alone, which shows what it will do and then does it."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.folder import MODULES, Checkpoint
from ctxextend.checkpoints.json_edit import edit
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layouts, write_files
from ctxextend.checkpoints.safetensors_file import OF_ML_DTYPES, read_floats
from ctxextend.errors import ResizeError, printable
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.edits import BufferPlan, TablePlan, make_buffer, plan_buffers, plan_edits, plan_tables, with_length
from ctxextend.plan.find_tables import OpenedModel, describe_table, open_model
from ctxextend.plan.output_files import (
    CARD_FILE,
    RECIPE_POINTER,
    UNDECODED,
    UNTRAINED,
    file_warnings,
    index_text,
    known_base_model,
    model_card,
    read_card,
)
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Recipe, Resize, split_ref, takes
from ctxextend.recipe_file import read_provenance, recipe_values, trainings, yaml_text
from ctxextend.tables.apply import Choice, choose_settings, nonfinite_rows, resize_with_reserved
from ctxextend.tables.method_facts import METHOD_NAMES, TRUNCATE, UNCHANGED
from ctxextend.tables.stats import describe_rows
from ctxextend.version import __version__


@dataclass(frozen=True, eq=False, repr=False)
class ResizePlan(Result, shows="model_type method max_len_before max_len_after"):
    """Everything a resize will do, known before it is done; `execute` does it."""

    model: OpenedModel = field(metadata=not_in_json)  # the source, opened and recognised
    settings: Resize = field(metadata=not_in_json)  # what was asked for
    tables: tuple[TablePlan, ...]  # the one that reads the tokenizer's texts first
    edits: tuple[Edit, ...]  # values that change in JSON files
    dropped: tuple[str, ...]  # position buffers that are left out of the weights
    rebuilt_buffers: tuple[BufferPlan, ...] = field(metadata=not_in_json)  # position buffers that are made anew
    # What made tables before, by their names, where a recipe says so; other tables take the method of `settings`.
    recorded: Mapping[str, str] = field(default_factory=dict, metadata=not_in_json)

    def json_more(self) -> dict[str, Any]:
        """Return what the JSON of a plan says beside its fields."""
        config_file = self.checkpoint.config_file
        lengths = {key: {getattr(table, key) for table in self.tables} for key in ("max_len_before", "max_len_after")}
        return {
            "source": self.ref.source,
            "revision": self.checkpoint.source.revision,
            "model_type": self.model_type,
            "method": self.method,
            "methods": self.methods,
            "keep_first": self.settings.kept_first,
            "drop_last": self.settings.drop_last,
            **{key: found.pop() if len(found) == 1 else None for key, found in lengths.items()},
            "config": {edit.key: (edit.before, edit.after) for edit in self.edits if edit.file == config_file},
            "files": self.files,
            "bytes_to_write": self.bytes_to_write,
            "bytes_shareable": self.bytes_shareable,
            "notes": self.notes,
            "rebuilt_buffers": [buffer.name for buffer in self.rebuilt_buffers],
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
    def model_type(self) -> str:
        """The model type."""
        return self.model.architecture.family.model_type

    @property
    def max_len_before(self) -> int:
        """Usable positions now of the table that is read first."""
        return self.tables[0].max_len_before

    @property
    def max_len_after(self) -> int:
        """Usable token positions wanted."""
        return self.settings.positions

    @property
    def is_changed(self) -> bool:
        """Whether any table gets another length."""
        return any(table.is_changed for table in self.tables)

    @property
    def creates_rows(self) -> bool:
        """Whether new rows are made: False where tables get shorter or stay."""
        return any(table.rows_after > table.rows_before for table in self.tables)

    @property
    def method(self) -> str:
        """The name of the method that makes new rows; `truncate` for shorter tables, `copy` for those that stay."""
        if self.creates_rows:
            return self._created_by.facts.name
        return TRUNCATE if self.is_changed else METHOD_NAMES[0]

    @property
    def _created_by(self) -> Resize:
        """The settings that make new rows; where several tables have their own, the first one's."""
        return next((choice.options for choice in self.chosen.values()), self.settings)

    @cached_property
    def chosen(self) -> Mapping[str, Choice]:
        """The settings of each longer table, by its name; a table is read only where its method chooses by it."""
        found = {}
        for table in self.tables:
            if table.rows_after > table.rows_before:
                asked = replace(self.settings, method=self.recorded.get(table.name, self.settings.method))
                rows = self._read(table)[table.reserved_rows :] if asked.chooses else np.zeros(0)
                found[table.name] = choose_settings(rows, table.rows_after - table.reserved_rows, asked)
        return found

    @property
    def methods(self) -> dict[str, str]:
        """The method of each longer table with all of its settings, by the table's name."""
        return {name: choice.options.full_method for name, choice in self.chosen.items()}

    @property
    def stated(self) -> Resize:
        """The settings as a recipe states them: the method named, with every number that holds for all tables."""
        if not self.creates_rows:
            return replace(self.settings, method=self.method, keep_first=None, drop_last=0)
        method, *others = {*self.methods.values()}
        stated = self.settings.full_method if others else method
        return replace(self.settings, method=stated, keep_first=self.settings.kept_first)

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row that a longer table begins with stays as it is, bit for bit."""
        lengths = [table.max_len_before for table in self.tables]
        return all(self.settings.kept_of(length) == length for length in lengths)

    @property
    def consequences(self) -> str:
        """What the new length is worth before any training, in a sentence."""
        after, options, method = self.max_len_after, self.settings, self._created_by.facts
        if not self.is_changed:
            return "Its table is the old one, row for row."
        if not self.creates_rows:
            return f"Texts of up to {after} tokens give exactly what they gave; longer ones no longer fit."
        but = f" but for the first {options.kept_first}" if options.kept_first else ""
        short = UNCHANGED if self.keeps_learned_rows else f"{method.short_inputs}{but}"
        if method.keeps_learned_rows and not options.keeps_learned_rows:
            short = f"nothing that it had learned of positions is left{but}, so short texts change too"
        beyond = f"beyond {self._old_lengths}, {method.long_inputs}"
        return f"{UNTRAINED.format(after)} with {method.name}, {short}; {beyond}."

    @property
    def _old_lengths(self) -> str:
        """The tables' old lengths in words: one number where all agree."""
        lengths = {table.part: table.max_len_before for table in self.tables}
        if len(set(lengths.values())) == 1:
            return str(self.max_len_before)
        return " and ".join(f"{length} ({part})" for part, length in lengths.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What needs saying of how the reference was understood, and of the family."""
        families = [table.location.family for table in self.tables]
        particular = dict.fromkeys(f"Of {family.model_type}: {family.note}." for family in families if family.note)
        return (*self.checkpoint.notes, *particular)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the plan is carried out."""
        return (*self._warnings(), *file_warnings(self.checkpoint))

    def _warnings(self) -> Iterator[str]:
        checkpoint = self.checkpoint
        if not self.is_changed:
            is_copy = self.settings.method == METHOD_NAMES[0]  # as the recipe of such an output says
            flags = ", ".join(self.settings.method_flags[is_copy:])
            what = "the same weights as safetensors" if self.layouts else "a copy"
            what += ", with the limits mended." if self.edits else "."
            what += f" {flags} had nothing to do." if flags else ""
            yield f"The table has {self.max_len_before} positions already: the output is {what}"
        yield from self._low_limits()
        if not checkpoint.has_config and not checkpoint.adapter_of:
            lengths = {table.config_key: table.location.key_value(table.max_len_after) for table in self.tables}
            keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
            yield f"There is no config.json: the one that transformers will need must state {keys}."
        if checkpoint.adapter_of and self.is_changed:
            then = "load the adapter onto the result, since adapter_config.json still names the old one."
            fits = f"The adapter now fits {checkpoint.adapter_of} at {self.max_len_after} positions alone"
            yield f"{fits}: resize that too, and {then}"
        if self.ref.tensor is not None and self.is_changed:
            lengths_now = {length for table in self.tables for length in (table.rows_before, table.max_len_before)}
            for entry in checkpoint.entries.values():
                if entry.name != self.ref.tensor and "pos" in entry.name and lengths_now & set(entry.shape):
                    yield f"{entry.name} {list(entry.shape)} may follow the length too, and is left as it is."

    def _low_limits(self) -> Iterator[str]:
        """Yield a sentence where side files stated less than the old table had: such texts now give something else."""
        limits = (edit for edit in self.edits if edit.is_limit and isinstance(edit.before, int))
        low = [f"{edit.file} {edit.key} {edit.before}" for edit in limits if edit.before < self.max_len_before]
        if low and (self.creates_rows or self.settings.fix_limits):
            reason = "texts that were cut there are now read in full and give different outputs."
            yield f"Limits below the table's {self.max_len_before} positions are raised ({', '.join(low)}): {reason}"

    # ---- the files of the output

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The new layout of every weights file that changes or gets another name, by its name in the output."""
        shapes = {buffer.name: buffer.shape for buffer in self.rebuilt_buffers}
        shapes |= {table.name: (table.rows_after, table.hidden_size) for table in self.tables if table.is_changed}
        return plan_layouts(self.checkpoint, shapes, self.dropped)

    @cached_property
    def texts(self) -> Mapping[str, bytes]:
        """Every text file that is edited or made, by its path below the output; the recipe's hashes are not known."""
        checkpoint = self.checkpoint
        texts = dict(checkpoint.generated)
        for name in dict.fromkeys(change.file for change in self.edits):
            values = {change.path: change.after for change in self.edits if change.file == name}
            texts[name] = edit(checkpoint.text(name), values)
        if checkpoint.index is not None and self.layouts:
            added = sum((table.rows_after - table.rows_before) * table.hidden_size for table in self.tables)
            texts[checkpoint.index_file] = index_text(checkpoint, self.layouts, self.dropped, added)
        texts |= {RECIPE_FILE: self._recipe(self.default_output), CARD_FILE: self._card()}
        return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}

    def _recipe(self, folder: Path, hashes: Iterable[str] = repeat("x" * 64)) -> str:
        """Return the recipe of an output, with the source's fingerprint and each table's hash before and after."""
        source, known = self.checkpoint.source, iter(hashes)
        # A branch may move on: the commit is written down.
        ref = replace(self.ref, revision=source.revision or self.ref.revision) if source.kind == "hub" else self.ref
        versions = {"ctxextend": __version__, "numpy": np.__version__}
        if any(table.dtype in OF_ML_DTYPES for table in self.tables):
            import ml_dtypes

            versions["ml_dtypes"] = ml_dtypes.__version__
        stated = self.stated
        own = self.methods if {*self.methods.values()} - {stated.method} else {}
        provenance: dict[str, Any] = {
            "model_type": self.model_type,
            "method": stated.method,
            **({"convention": self._created_by.facts.convention} if self.creates_rows else {}),
            "revision": source.revision,
            "source_fingerprint": next(known),
            "tables": [
                {
                    "name": table.name,
                    **({"method": own[table.name]} if table.name in own else {}),
                    "rows_before": table.rows_before,
                    "rows_after": table.rows_after,
                    "sha256_before": next(known),
                    "sha256_after": next(known),
                }
                for table in self.tables
            ],
            "versions": versions,
            **({"source_trainings": texts} if (texts := trainings(read_provenance(self.checkpoint))) else {}),
        }
        return yaml_text(recipe_values(Recipe(ref, stated)) | {"provenance": provenance}, folder)

    def _card(self) -> str:
        source, after = self.checkpoint.source, self.max_len_after
        name = printable(source.hub_id or source.name)
        names = ", ".join(f"`{table.name}`" for table in self.tables)
        was = f"resized from {self._old_lengths} to {after} token positions"
        section = (
            f"## Context length {after}\n\n"
            f"{name} with its position table{'s' * (len(self.tables) > 1)} ({names}) "
            f"{was if self.is_changed else f'of {after} token positions as it was'} by ctxextend {__version__}, method "
            f"`{self.method}`; no other weight was changed. {' '.join((self.consequences, *self._low_limits()))}"
            f"{RECIPE_POINTER}\n"
        )
        card, title = read_card(self.checkpoint), f"{printable(source.name)}-{after}"
        base_model, is_adapter = known_base_model(self.checkpoint), self.checkpoint.adapter_of is not None
        return model_card(card, base_model, is_adapter=is_adapter, title=title, section=section)

    @property
    def files(self) -> Mapping[str, Any]:
        """The files that are ``rewritten``, ``copied``, ``edited`` and ``created``, and why some are ``omitted``."""
        names, texts = self.checkpoint.files, self.texts.keys()
        return {
            "rewritten": tuple(self.layouts),
            "copied": tuple(sorted(names - texts - self.layouts.keys())),
            "edited": tuple(sorted(texts & names)),
            "created": tuple(sorted(texts - names)),
            "omitted": self.checkpoint.omitted,
        }

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """The size in bytes of each file of the output."""
        return file_sizes(self.checkpoint, self.layouts, self.texts)

    @property
    def bytes_to_write(self) -> int:
        """Bytes of the whole output at its default place: elsewhere, local paths in its recipe differ."""
        return sum(self.file_sizes.values())

    @property
    def bytes_shareable(self) -> int:
        """Bytes of the output in blocks that stay as they are, which a disk that can share them need not write."""
        copied = (self.file_sizes[name] for name in self.files["copied"])
        return sum(copied) + sum(layout.shareable for layout in self.layouts.values())

    @property
    def default_output(self) -> Path:
        """Where the checkpoint goes if nothing else is said: ``<name>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.max_len_after}")

    # ---- carrying it out

    def check_output(self, output: str | os.PathLike[str] | None = None, *, force: bool = False) -> None:
        """Raise OutputError where `execute` would refuse the output, without writing anything."""
        path = output_path(output, self.default_output)
        check_output(path, self.checkpoint.guarded, self.file_sizes, force=force)

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
        began, checkpoint = time.perf_counter(), self.checkpoint
        folder = output_path(output, self.default_output)
        checkpoint.check_unchanged()
        warnings, hashes = list(self.warnings), [checkpoint.weights_fingerprint()]
        texts = {**self.texts, RECIPE_FILE: self._recipe(folder).encode("utf-8", UNDECODED)}
        sizes = {**self.file_sizes, RECIPE_FILE: len(texts[RECIPE_FILE])}
        tensors, total = {buffer.name: make_buffer(buffer) for buffer in self.rebuilt_buffers}, sum(sizes.values())

        def written(count: int) -> None:
            progress(count, total)

        with atomic_folder(folder, checkpoint.guarded, sizes, force=force) as staged:
            for table in self.tables:
                before = self._read(table)
                after = tensors[table.name] = self.resized(table, before)
                hashes += [table_hash(before), table_hash(after)]
                bad, bad_now = nonfinite_rows(before), len(nonfinite_rows(after))
                if bad:
                    what = f"{table.name} holds NaN or infinity in row{'s' * (len(bad) > 1)} {describe_rows(bad)}"
                    warnings.append(f"{what}; {bad_now} of the {len(after)} rows that were written hold them.")
                elif bad_now:
                    what = f"{bad_now} new rows of {table.name} go beyond what {table.dtype} can hold"
                    warnings.append(f"{what}, and are infinite.")
            texts[RECIPE_FILE] = self._recipe(folder, hashes).encode("utf-8", UNDECODED)
            write_files(checkpoint, staged, self.layouts, tensors.__getitem__, texts, written)
            size = sum((staged / name).stat().st_size for name in self.file_sizes)
            check(staged)
        seconds = round(time.perf_counter() - began, 3)
        return ResizeResult(self, folder, tuple(warnings), size, seconds, self.choices)

    @property
    def choices(self) -> tuple[str, ...]:
        """What was chosen for each table by its own figures, in words."""
        return tuple(f"{name}: {choice.reason}" for name, choice in self.chosen.items() if choice.reason)

    def _read(self, table: TablePlan) -> NDArray[Any]:
        return read_floats(self.checkpoint.names[table.name], table.name)

    def resized(self, table: TablePlan, before: NDArray[Any]) -> NDArray[Any]:
        """Return one of the `tables`, shape (rows_before, hidden_size), at its new length, in its dtype."""
        positions = table.rows_after - table.reserved_rows
        try:
            options = self.chosen[table.name].options if table.name in self.chosen else self.settings
            return resize_with_reserved(before, table.reserved_rows, positions, options)
        except MemoryError:
            what = f"A table of {table.rows_after:,} rows of {table.hidden_size:,}"
            raise ResizeError(f"{what} does not fit in this machine's memory.", "Give a smaller --to.") from None


@dataclass(frozen=True, eq=False, repr=False)
class ResizeResult(Result, shows="output seconds"):
    """What became of a plan; its JSON is the plan's, and its own fields."""

    plan: ResizePlan = field(metadata=not_in_json)
    output: Path  # the new folder
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)  # the plan's own first
    bytes_written: int = 0  # of the new folder's files
    seconds: float = 0.0  # wall clock
    choices: tuple[str, ...] = ()  # what a method that goes by a table's own figures made of them
    dry_run: bool = False  # whether the plan was only shown
    verified: bool = False  # whether the output was verified before it took its name

    @property
    def load_code(self) -> str | None:
        """Python that loads the new folder with the library that it is for; None where its files are not enough."""
        plan, checkpoint = self.plan, self.plan.checkpoint
        is_own = plan.ref.tensor is not None or "auto_map" in checkpoint.config or checkpoint.adapter_of is not None
        if (
            is_own
            or not checkpoint.has_config
            or checkpoint.config.get("model_type", plan.model_type) != plan.model_type
        ):
            return None
        stored, is_encoder = checkpoint.variant, MODULES in checkpoint.copied
        name = json.dumps(str(self.output if is_encoder else self.output / checkpoint.model))
        if is_encoder:
            more = f', model_kwargs={{"variant": "{stored}"}}' if stored else ""
            return f"from sentence_transformers import SentenceTransformer; SentenceTransformer({name}{more})"
        more, model_class = f', variant="{stored}"' if stored else "", checkpoint.model_class or "AutoModel"
        return f"from transformers import {model_class}; {model_class}.from_pretrained({name}{more})"

    def json_more(self) -> ResizePlan:
        """Return what its JSON says beside its fields."""
        return self.plan


@takes(CheckpointRef, Resize)
def plan_resize(
    reference: str | os.PathLike[str], to: int | str, method: str | None = None, **settings: Any
) -> ResizePlan:
    """Plan a resize from a checkpoint's config and headers; nothing is written and no weight is read.

    Args:
        reference: A folder, a weights file, the name of a bundled checkpoint, or a Hub id, which is downloaded.
        to: Usable token positions wanted, ≥ 1; reserved rows come on top.
            Also ``4k`` (4,096), or ``4x`` (four times the present ones).
        method: The name of one of `list_methods`, with its settings where they should not be the default's:
            ``bands:sigma=4,gain=1.2``. None is ``copy``, or ``truncate`` where the table gets shorter.
        settings: The other fields of `Resize`, by name: ``keep_first``, ``drop_last``, ``part``, ``fix_limits`` and
            ``copy_code``; and those of `CheckpointRef`: ``revision``, …, and ``tensor`` for a model type of your own.

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no learned position table that is known here.
        ResizeError: The length, the method or a flag cannot be served.
    """
    ref, settings = split_ref(reference, settings)
    asked = Resize(to, method=method, **settings)
    return plan_model(open_model(ref), asked)


def plan_model(model: OpenedModel, settings: Resize, recorded: Mapping[str, str] | None = None) -> ResizePlan:
    """Plan the resize of a checkpoint that is open already; see `plan_resize` and `ResizePlan.recorded`."""
    model = model.with_code() if settings.copy_code else model
    checkpoint = model.checkpoint
    describe = partial(describe_table, checkpoint)
    settings = with_length(settings, model.tables, describe)
    tables = plan_tables(model.tables, settings, describe, has_config=bool(checkpoint.config))
    edits, buffers = plan_edits(model, tables), plan_buffers(checkpoint, tables)
    return ResizePlan(model, settings, tables, edits, *buffers, recorded or {})


@takes(CheckpointRef, Resize)
def resize(
    reference: str | os.PathLike[str],
    to: int | str,
    method: str | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Plan a resize and carry it out: `plan_resize` and `ResizePlan.execute` in one.

    Args:
        reference, to, method: As in `plan_resize`.
        output: The new folder; None is ``<name>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder at the last moment.
        settings: The other arguments of `plan_resize`, by their names.

    Raises:
        CtxextendError: As `plan_resize` and `ResizePlan.execute`.
    """
    return plan_resize(reference, to, method, **settings).execute(output, force=force)


def output_path(output: str | os.PathLike[str] | None, default: Path) -> Path:
    """Return where an output goes: where the user says, or by default."""
    return default if output is None else Path(os.path.expanduser(output))  # noqa: PTH111 - never raises


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's bytes, row by row, as it stands in every recipe."""
    import hashlib  # at use: a plan alone hashes nothing, and OpenSSL takes its time

    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()
