"""Resize a checkpoint: plan from its config and headers, then write the output."""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.folder import MODULES, Checkpoint
from ctxextend.checkpoints.json_edit import edit
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layouts, write_files
from ctxextend.checkpoints.safetensors_file import ML_DTYPES_NAMES, read_floats
from ctxextend.errors import MethodError, ResizeError, printable
from ctxextend.families.rope import read_rope
from ctxextend.families.schema import BEYOND
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan import length_notes, output_files
from ctxextend.plan.edits import (
    BufferPlan,
    TablePlan,
    new_buffer,
    plan_buffers,
    plan_edits,
    plan_tables,
    with_length,
)
from ctxextend.plan.find_tables import (
    FoundTable,
    OpenedModel,
    TableShape,
    check_own_code,
    check_tensor,
    check_width,
    describe_table,
    ignored_tensors,
    open_model,
    with_note,
    with_type_note,
)
from ctxextend.plan.runtimes import describe_runtimes, runtime_lengths
from ctxextend.plan.untrained import UntrainedRows, find_untrained
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Recipe, Resize, accepts_settings, split_ref
from ctxextend.recipe_file import read_provenance, recipe_values, trainings, yaml_text
from ctxextend.tables.apply import (
    choose_method,
    deviation,
    nonfinite_rows,
    resize_with_reserved,
)
from ctxextend.tables.choice import MethodChoice, limit_kept_first
from ctxextend.tables.method_facts import COPY, DEFAULT_METHOD, FORMULA, LIMITS, TRUNCATE
from ctxextend.tables.rotary_methods import ROTARY_METHODS
from ctxextend.tables.stats import describe_rows
from ctxextend.version import __version__


@dataclass(frozen=True, eq=False, repr=False)
class ResizePlan(Result, shows="model_type method max_len_before max_len_after"):
    """Everything a resize will change; `execute` writes the output."""

    kind: ClassVar = "method"  # of `summary`, as a label

    model: OpenedModel = field(metadata=not_in_json)  # the source
    settings: Resize = field(metadata=not_in_json)  # the requested settings
    tables: tuple[TablePlan, ...]  # the table for the tokenizer's input first
    edits: tuple[Edit, ...]  # changed values in JSON files
    dropped: tuple[
        str, ...
    ]  # position buffers that are not written, because transformers creates them
    rebuilt_buffers: tuple[BufferPlan, ...] = field(
        metadata=not_in_json
    )  # position buffers at the new length
    # Methods that a recipe records per table; other tables use the method in `settings`.
    recorded: Mapping[str, str] = field(default_factory=dict, metadata=not_in_json)
    edit_only: bool = field(default=False, metadata=not_in_json)  # see `without_weights`

    def json_more(self) -> dict[str, Any]:
        """Return the JSON values of a plan that are not fields."""
        config_file = self.checkpoint.config_file
        lengths = {
            key: {getattr(table, key) for table in self.tables}
            for key in ("max_len_before", "max_len_after")
        }
        return {
            "source": self.ref.source,
            "revision": self.checkpoint.source.revision,
            "model_type": self.model_type,
            "method": self.method,
            "methods": self.methods,
            "keep_first": self.settings.choice.keep_first,
            "drop_last": self.settings.drop_last,
            **{key: values.pop() if len(values) == 1 else None for key, values in lengths.items()},
            "config": {
                edit.key: (edit.before, edit.after)
                for edit in self.edits
                if edit.file == config_file
            },
            "files": self.files,
            "bytes_to_write": self.bytes_to_write,
            "bytes_shareable": self.bytes_shareable,
            "notes": self.notes,
            "runtimes": self.runtimes,
            "rebuilt_buffers": [buffer.name for buffer in self.rebuilt_buffers],
        }

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint reference as the user gave it."""
        return self.model.ref

    @property
    def checkpoint(self) -> Checkpoint:
        """The source checkpoint."""
        return self.model.checkpoint

    @property
    def model_type(self) -> str:
        """The model type."""
        return self.model.architecture.family.model_type

    @property
    def stored(self) -> tuple[TablePlan, ...]:
        """The tables that the checkpoint contains; transformers computes the others."""
        return tuple(table for table in self.tables if table.is_stored)

    @property
    def has_rows(self) -> bool:
        """Whether any position table is one of rows; rotary, ALiBi and relative positions have
        none.
        """
        return any(table.has_rows for table in self.tables)

    @property
    def max_len_before(self) -> int:
        """Usable positions of the first table before the resize."""
        return self.tables[0].max_len_before

    @property
    def max_len_after(self) -> int:
        """The requested context length, in usable positions."""
        return self.settings.positions

    @property
    def is_changed(self) -> bool:
        """Whether the length of any table changes."""
        return any(table.is_changed for table in self.tables)

    @property
    def creates_rows(self) -> bool:
        """Whether any table is extended, or any rotary setting is to change."""
        return any(table.is_extended for table in self.tables)

    @property
    def only_limits_change(self) -> bool:
        """Whether rotary positions get another length, but no position of any input another
        meaning.
        """
        extended = [table for table in self.tables if table.is_extended]
        return bool(extended) and all(table.rope and not table.scales for table in extended)

    @property
    def method(self) -> str:
        """The method that creates new rows; `truncate` when shrinking, `copy` or `limits` if
        nothing changes.
        """
        if self.creates_rows:
            return self._created_by.name
        if self.is_changed:
            return TRUNCATE
        return COPY if self.has_rows else LIMITS

    @property
    def _created_by(self) -> MethodChoice:
        """The method that creates new rows; if they differ, that of the first table whose learned
        rows change.
        """
        chosen = [*self.chosen.values()]
        return next(
            (choice for choice in chosen if not choice.keeps_learned_rows),
            (*chosen, self.settings.choice)[0],
        )

    @cached_property
    def chosen(self) -> Mapping[str, MethodChoice]:
        """The settings chosen for each extended table, by name; tables are read only if these
        depend on them.
        """
        return {table.name: self._choose(table) for table in self.tables if table.is_extended}

    def _choose(self, table: TablePlan) -> MethodChoice:
        if not table.has_rows:
            methods = [plan.choice for plan in table.rope] or [MethodChoice(ROTARY_METHODS[LIMITS])]
            reasons = dict.fromkeys(choice.reason for choice in methods if choice.reason)
            return replace(methods[0], reason="; ".join(reasons))
        options, layout = self.settings, table.location.layout
        options = replace(options, method=self.recorded.get(table.name, options.method))
        if not table.is_stored:
            return replace(options, method=FORMULA).choice
        requested = options.choice
        rows = (
            self._read(table)[table.reserved_rows :]
            if requested.depends_on_table or layout
            else np.zeros(0)
        )
        choice = choose_method(
            rows, table.rows_after - table.reserved_rows, requested, layout, self.checkpoint.no_lm
        )
        if self._looks_untrained(table):
            return replace(choice, reason="")  # random rows are no reason for anything
        away = deviation(rows, layout) if layout and choice.name != FORMULA else ""
        return replace(choice, reason="; ".join(filter(None, (away, choice.reason))))

    @cached_property
    def untrained(self) -> Mapping[str, UntrainedRows]:
        """The rows that no training has changed, by name of each table whose limits rise; the
        tables are read.
        """
        found = dict[str, UntrainedRows]()
        for table in self.stored:
            if table.is_extended or table.fixes_limits:
                rows = self._read(table)[table.reserved_rows :]
                found[table.name] = find_untrained(self.checkpoint, table.location, rows)
        return found

    def _looks_untrained(self, table: TablePlan) -> bool:
        """Whether training has changed less than half of the rows of a table."""
        return (
            table.name in self.untrained
            and 2 * self.untrained[table.name].count > table.max_len_before
        )

    @property
    def untrained_warnings(self) -> tuple[str, ...]:
        """A warning for each kind of rows that no training has changed; the tables are read."""
        texts = list[str]()
        for name, rows in self.untrained.items():
            texts += (f"{name} {text}" for text in rows.describe())
        return tuple(texts)

    @property
    def methods(self) -> dict[str, str]:
        """The method of each extended table with all of its settings, by table name."""
        return {name: choice.text for name, choice in self.chosen.items()}

    @property
    def summary(self) -> str:
        """The methods with their settings, or what else creates the output, in a few words."""
        counts = {
            "--keep-first": self.settings.choice.keep_first,
            "--drop-last": self.settings.drop_last,
        }
        given = [f"{flag} {count}" for flag, count in counts.items() if count and self.creates_rows]
        return ", ".join([*(dict.fromkeys(self.methods.values()) or [self.method]), *given])

    @property
    def details(self) -> tuple[str, ...]:
        """The change of each table, for messages."""
        changes = []
        for table in self.tables:
            change = (
                f"{table.max_len_before} -> {table.max_len_after} positions, "
                f"{self.method_of(table)}"
            )
            change = change if table.is_changed else f"{table.max_len_after} positions, unchanged"
            changes.append(f"{table.name}: {change}")
        return tuple(changes)

    def options_of(self, table: TablePlan) -> MethodChoice:
        """Return the method of one of `tables`, chosen for its rows if it is extended."""
        return self.chosen.get(table.name, self.settings.choice)

    def method_of(self, table: TablePlan) -> str:
        """Return the method of one of `tables`; learned rows and sinusoids of one model have
        different defaults.
        """
        return self.options_of(table).name if table.name in self.chosen else self.method

    @property
    def recipe_settings(self) -> Resize:
        """The settings to write into a recipe, with the method's settings if they are the same for
        all tables.
        """
        if not self.creates_rows:
            method = TRUNCATE if self.is_changed else None
            return replace(self.settings, method=method, keep_first=None, drop_last=0)
        method, *others = {*self.methods.values()}
        given = self.settings.method and self.settings.choice.text
        if others:
            return replace(self.settings, method=given, keep_first=self.settings.choice.keep_first)
        return replace(self.settings, method=method, keep_first=self._created_by.keep_first)

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether all learned rows are kept, bit for bit, at the start of every table."""
        for table in self.tables:
            if table.name not in self.chosen or (table.rope and not table.scales):
                continue
            if self.chosen[table.name].kept_rows(table.max_len_before) != table.max_len_before:
                return False
        return True

    @property
    def consequences(self) -> str:
        """What to expect of the model's outputs before any training, in a sentence or two."""
        after, options, method = self.max_len_after, self._created_by, self._created_by.facts
        padded = " if padded as before" * any(
            table.location.family.padding_effect for table in self.tables
        )
        padded += " unless they were truncated before" * any(self._low_limits())
        if not self.is_changed:
            return f"The {'position table' if self.has_rows else 'context length'} is unchanged."
        if not self.creates_rows:
            rest = (
                "get computed rows"
                if all(one.location.table.grows for one in self.tables)
                else "are not supported"
            )
            return (
                f"Inputs up to {after} tokens give identical outputs{padded}; longer inputs {rest}."
            )
        if self.only_limits_change:
            return f"{self._effect_of_limits()}{padded}."
        if self.keeps_learned_rows:
            kept = self.tables[0].same_up_to if self.tables[0].rope else self._old_lengths
            effects = f"Inputs up to {kept} tokens give identical outputs{padded}; beyond that"
        else:
            replaces_learned = method.keeps_learned_rows and not options.keeps_learned_rows
            short = (
                "learned rows are replaced, so outputs for short inputs change too"
                if replaces_learned
                else None
            )
            short = short or method.short_inputs
            kept = f" (the first {options.keep_first} rows are kept)" if options.keep_first else ""
            effects = f"{short[:1].upper()}{short[1:]}{kept}; beyond {self._old_lengths}"
        scheme = next(table.scheme for table in self.tables if table.name in self.chosen)
        long_inputs = BEYOND[scheme] if method.name == LIMITS else method.long_inputs
        return f"{output_files.UNTRAINED.format(after)} {effects}, {long_inputs}."

    def _effect_of_limits(self) -> str:
        """Say what longer inputs get if no rotary setting changes what positions mean, as a
        clause.
        """
        table = next(table for table in self.tables if table.rope)
        served = table.lengths.served if table.lengths else table.max_len_before
        effect = (
            f"No position changes its meaning: inputs up to {self.max_len_after} tokens give "
            "identical outputs"
        )
        if self.max_len_after <= served:
            return f"The settings already serve {served} tokens. {effect}"
        return f"Nothing scales: beyond {served} tokens, {BEYOND[table.scheme]}. {effect}"

    @property
    def keep_hint(self) -> str:
        """How to keep outputs for short inputs if the default method changes them; else empty."""
        is_mixed = len({table.has_rows for table in self.tables}) > 1  # no method applies to all
        if is_mixed or self.keeps_learned_rows or self.settings.choice.name != DEFAULT_METHOD:
            return ""
        if not self.has_rows:
            table = self.tables[0]
            facts = self.tables[0].location.table.rope
            is_unscaled = all(
                plan.before.parameters["rope_type"] == "default" for plan in table.rope
            )
            is_choice = is_unscaled and facts and "dynamic" in facts.methods
            return (
                "To keep outputs for short inputs, use --method dynamic (transformers only)."
                if is_choice
                else ""
            )
        lengths = {table.max_len_before for table in self.tables}
        keep = f"--keep-first {max(lengths)}, or " if len(lengths) == 1 else ""
        return (
            f"To keep outputs for short inputs, use {keep}--method {COPY}, which is mostly worse "
            "for long ones."
        )

    @cached_property
    def runtimes(self) -> Mapping[str, int | None]:
        """The context length that each runtime derives from new rotary settings, None if it does
        not support them.
        """
        table = next((table for table in self.tables if table.rope), None)
        if table is None:
            return {}
        parameters, model_type = table.rope[0].after, table.location.family.model_type
        return runtime_lengths(parameters, table.key_length, self.max_len_after, model_type)

    @property
    def runtime_notes(self) -> tuple[str, ...]:
        """Which runtimes read the requested context length; empty if no rotary settings change."""
        return (describe_runtimes(self.runtimes, self.max_len_after),) if self.runtimes else ()

    @property
    def _old_lengths(self) -> str:
        """The tables' old lengths: one number if they agree, else each with its part."""
        lengths = {table.part: table.max_len_before for table in self.tables}
        if len(set(lengths.values())) == 1:
            return str(self.max_len_before)
        return " and ".join(f"{length} ({part})" for part, length in lengths.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about how the reference was resolved and about the model type."""
        families = [table.location.family for table in self.tables]
        family_notes = dict.fromkeys(
            f"{family.model_type}: {family.note}." for family in families if family.note
        )
        ignored = ignored_tensors(self.checkpoint, self.model.tables)
        lengths = (*self._lengths(), *self._windows(), *self._generation())
        return (*self.checkpoint.notes, *ignored, *family_notes, *lengths)

    def _lengths(self) -> Iterator[str]:
        """Yield the three lengths of rotary positions whose config does not state the length that
        they serve.
        """
        for table in self.tables:
            lengths = table.lengths
            if lengths is None or lengths.stated == lengths.served or not table.rope:
                continue
            stated = f"{table.location.effective_key} states {lengths.stated}"
            trained = f"first trained at {lengths.first_trained} tokens"
            yield f"{table.name}: {trained}, serves {lengths.served}; {stated}."

    def _generation(self) -> Iterator[str]:
        """Yield notes about limits of generated texts that change, or at which they stop before the
        new length.
        """
        yield from length_notes.generation_edit_notes(self.edits)
        if not self.settings.fix_limits:
            yield from length_notes.generation_notes(
                self.model, self.tables, None, ", or pass --fix-limits"
            )

    def _windows(self) -> Iterator[str]:
        """Yield a note for layers with rotary positions that see no further than a sliding
        window.
        """
        for table in self.tables:
            location = table.location
            rope = read_rope(table.location) if table.rope else ()
            local = [layers.layers for layers in rope if layers.is_local]
            window, is_used = (
                location.stated("sliding_window"),
                location.stated("use_sliding_window"),
            )
            if local:
                yield (
                    f"{table.name}: {', '.join(local)} layers have a sliding window, so they "
                    "keep their settings."
                )
            elif (
                table.rope
                and isinstance(window, int)
                and is_used is not False
                and not location.stated("layer_types")
            ):
                yield (
                    f"All layers see {window} tokens (sliding_window): {table.name} does not "
                    "make them see further."
                )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to show before `execute`."""
        return (*self._warnings(), *output_files.file_warnings(self.checkpoint))

    def _warnings(self) -> Iterator[str]:
        checkpoint = self.checkpoint
        if not self.is_changed:
            flags = ", ".join(self.settings.method_flags)
            output = "the same weights as safetensors" if self.layouts else "a copy"
            output += " with fixed length limits." if self.edits else "."
            output += f" No effect: {flags}." if flags else ""
            has = (
                "table already has {} positions"
                if self.has_rows
                else "context length already is {}"
            )
            yield f"The {has.format(self.max_len_before)}: the output is {output}"
        yield from self._low_limits()
        yield from length_notes.length_key_warnings(self.model, self.tables, self.settings)
        yield from self._padding()
        if not checkpoint.has_config and not checkpoint.adapter_of:
            lengths = {
                table.config_key: table.location.key_value(table.max_len_after)
                for table in self.tables
            }
            keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
            yield f"No config.json found. To load the output, transformers needs one with {keys}."
        if checkpoint.adapter_of and self.is_changed:
            base = checkpoint.adapter_of
            hint = "load the adapter onto the result (adapter_config.json is not updated)."
            yield (
                f"The adapter now only fits {base} at {self.max_len_after} positions: resize "
                f"that too, and {hint}"
            )
        if self.ref.tensor is not None and self.is_changed:
            lengths_now = {
                length
                for table in self.tables
                for length in (table.rows_before, table.max_len_before)
            }
            for entry in checkpoint.entries.values():
                if (
                    entry.name != self.ref.tensor
                    and "pos" in entry.name
                    and lengths_now & set(entry.shape)
                ):
                    yield (
                        f"{entry.name} {list(entry.shape)} may depend on the length too, but is "
                        "not changed."
                    )

    def _low_limits(self) -> Iterator[str]:
        """Yield a warning if limits below the table's old length are raised, which changes
        outputs.
        """
        limits = (edit for edit in self.edits if edit.is_limit and isinstance(edit.before, int))
        low = [
            f"{edit.file} {edit.key} {edit.before}"
            for edit in limits
            if edit.before < self.max_len_before
        ]
        if low and (self.creates_rows or self.settings.fix_limits):
            effect = "inputs that were truncated there give different outputs now."
            what = "table's" if self.has_rows else "model's"
            yield (
                f"Limits below the {what} {self.max_len_before} positions are raised "
                f"({', '.join(low)}): {effect}"
            )

    def _padding(self) -> Iterator[str]:
        """Yield a warning for each table of a model whose outputs depend on the padding length."""
        for table in self.tables:
            family, before, after = table.location.family, table.max_len_before, table.max_len_after
            if family.padding_effect and table.is_changed:
                flags = f"padding='max_length', max_length={before}"
                condition = (
                    "short texts give the same outputs only if padded as before, for example "
                    f"with {flags}"
                )
                files = (
                    f"Tokenizer files stay as they are: for longer texts, pass max_length={after}."
                )
                files = (
                    files
                    if table.keeps_padding
                    else f"Texts padded to {after} tokens give other outputs."
                )
                yield f"{family.model_type} {family.padding_effect}: {condition}. {files}"

    # ---- the files of the output

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The new layout of every weights file that changes or is renamed, by its name in the
        output.
        """
        shapes = {buffer.name: buffer.shape for buffer in self.rebuilt_buffers}
        shapes |= {
            table.name: (table.rows_after, table.hidden_size)
            for table in self.stored
            if table.is_changed
        }
        return plan_layouts(self.checkpoint, shapes, self.dropped)

    @cached_property
    def texts(self) -> Mapping[str, bytes]:
        """Every edited or created text file, by path in the output; hashes in the recipe are
        placeholders.
        """
        checkpoint = self.checkpoint
        texts = dict(checkpoint.generated)
        for name in dict.fromkeys(change.file for change in self.edits):
            values = {change.path: change.after for change in self.edits if change.file == name}
            texts[name] = edit(checkpoint.text(name), values)
        if checkpoint.index is not None and self.layouts:
            added = sum(
                (table.rows_after - table.rows_before) * table.hidden_size for table in self.stored
            )
            texts[checkpoint.index_file] = output_files.index_text(
                checkpoint, self.layouts, self.dropped, added
            )
        texts |= {
            RECIPE_FILE: self._recipe(self.default_output),
            output_files.CARD_FILE: self._card(),
        }
        return {name: text.encode("utf-8", output_files.UNDECODED) for name, text in texts.items()}

    def _recipe(self, folder: Path, hashes: Iterable[str] = repeat("x" * 64)) -> str:
        """Return the recipe of an output; `hashes`: the source's fingerprint, then each table's
        before and after.
        """
        source = self.checkpoint.source
        hashes = iter(hashes)
        # Branches move, so record the commit.
        ref = (
            replace(self.ref, revision=source.revision or self.ref.revision)
            if source.kind == "hub"
            else self.ref
        )
        versions = {"ctxextend": __version__, "numpy": np.__version__}
        if any(table.dtype in ML_DTYPES_NAMES for table in self.stored):
            import ml_dtypes

            versions["ml_dtypes"] = ml_dtypes.__version__
        recipe, texts = self._step(ref), trainings(read_provenance(self.checkpoint))
        provenance = {
            "revision": source.revision,
            "source_fingerprint": next(hashes),
        } | self._facts(iter(hashes))
        provenance |= {"versions": versions} | ({"source_trainings": texts} if texts else {})
        return yaml_text(recipe_values(recipe) | {"provenance": provenance}, folder)

    def _step(self, ref: CheckpointRef) -> Recipe:
        """Return the recipe of the output, without provenance."""
        return Recipe(ref, self.recipe_settings)

    def _facts(self, hashes: Iterator[str]) -> dict[str, Any]:
        """Return what the recipe states about the model and its tables; see `_recipe` for
        `hashes`.
        """
        settings = self.recipe_settings
        per_table = self.methods if {*self.methods.values()} - {settings.method} else {}
        return {
            "model_type": self.model_type,
            **({"method": settings.method} if settings.method else {}),
            **({"convention": self._created_by.facts.convention} if self.creates_rows else {}),
            "tables": [
                {
                    "name": table.name,
                    **({"method": per_table[table.name]} if table.name in per_table else {}),
                    "rows_before": table.rows_before,
                    "rows_after": table.rows_after,
                    **(
                        {key: next(hashes) for key in ("sha256_before", "sha256_after")}
                        if table.is_stored
                        else {}
                    ),
                }
                for table in self.tables
            ],
        }

    def _fingerprint(self) -> str:
        return self.checkpoint.weights_fingerprint()

    def _card(self) -> str:
        source, after = self.checkpoint.source, self.max_len_after
        name = printable(source.hub_id or source.name)
        names = ", ".join(f"`{table.name}`" for table in self.tables)
        change = (
            f"resized from {self._old_lengths} to {after} positions with method `{self.method}`"
        )
        change = change if self.is_changed else f"kept at {after} positions"
        tables = f"position table{'s' * (len(self.tables) > 1)}"
        what = f"{tables if self.has_rows else f'{self.tables[0].scheme} positions'} ({names})"
        why = "transformers computes the rows" if self.has_rows else "All weights are the same"
        others = "No other weights" if self.stored else f"{why}: only config and tokenizer files"
        effects = self.consequences, *self._low_limits(), *self._padding()
        section = (
            f"## Context length {after}\n\n"
            f"{name} with its {what} {change} by ctxextend {__version__}. "
            f"{others} were changed. {' '.join(effects)}{output_files.RECIPE_POINTER}\n"
        )
        card = output_files.read_card(self.checkpoint)
        title = f"{printable(source.name)}-{after}"
        base_model = output_files.known_base_model(self.checkpoint)
        is_adapter = self.checkpoint.adapter_of is not None
        return output_files.model_card(
            card, base_model, is_adapter=is_adapter, title=title, section=section
        )

    @property
    def files(self) -> Mapping[str, Any]:
        """Files that are ``rewritten``, ``copied``, ``edited`` or ``created``, and why some are
        ``omitted``.
        """
        names = self.written.files
        texts = self.texts.keys()
        rewritten = [*self.layouts, *sorted(self.checkpoint.generated.keys() & names)]
        return {
            "rewritten": tuple(rewritten),
            "copied": tuple(sorted(names - texts - self.layouts.keys())),
            "edited": tuple(sorted((texts & names).difference(rewritten))),
            "created": tuple(sorted(texts - names)),
            "omitted": self.checkpoint.omitted,
        }

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """Size in bytes of each output file."""
        return file_sizes(self.written, self.layouts, self.texts)

    @property
    def bytes_to_write(self) -> int:
        """Total size of the output at its default location; elsewhere, local paths in the recipe
        differ.
        """
        return sum(self.file_sizes.values())

    @property
    def bytes_shareable(self) -> int:
        """Bytes of the output in unchanged blocks, which a file system with block cloning does not
        write again.
        """
        copied = (self.file_sizes[name] for name in self.files["copied"])
        return sum(copied) + sum(layout.shareable for layout in self.layouts.values())

    @property
    def default_output(self) -> Path:
        """The default output folder: ``<name>-<N>`` in the current folder."""
        return Path(f"{self.checkpoint.source.name}-{self.max_len_after}")

    def without_weights(self) -> "ResizePlan":
        """Return a plan that writes only edited and created files; raise MethodError if the weights
        change too.
        """
        if changed := [*self.layouts]:
            message = (
                f"--edit-only writes no weights, but {' and '.join(changed[:2])} must be written."
            )
            raise MethodError(message, "Remove --edit-only.")
        return replace(self, edit_only=True)

    @cached_property
    def written(self) -> Checkpoint:
        """The source, restricted to the files that the output contains."""
        copied = tuple(name for name in self.checkpoint.copied if name in self.texts)
        return (
            replace(self.checkpoint, weights={}, index=None, copied=copied)
            if self.edit_only
            else self.checkpoint
        )

    # ---- writing the output

    def check_output(
        self, output: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> None:
        """Raise OutputError if `execute` would fail for this output, without writing anything."""
        check_output(
            output_path(output, self.default_output),
            self.checkpoint.protected,
            self.file_sizes,
            force=force,
        )

    def execute(
        self,
        output: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
        progress: Progress = no_progress,
        check: Callable[[Path], None] = lambda folder: None,
    ) -> "ResizeResult":
        """Write the resized checkpoint to a temporary folder and rename it, so that it is complete
        or absent.

        Args:
            output: Output folder. Defaults to `default_output`.
            force: Replace an existing checkpoint folder, once the new one is complete.
            progress: Called with the bytes written since the last call and the total.
            check: Called with the complete temporary folder before it is renamed; if it raises,
                nothing is written.

        Raises:
            OutputError: The output exists, cannot be written or replaced, or there is too little
                disk space.
            CheckpointError: The source cannot be read, or changed after it was planned.
            ResizeError: The new table does not fit in memory.
        """
        start = time.perf_counter()
        checkpoint = self.checkpoint
        folder = output_path(output, self.default_output)
        checkpoint.check_unchanged()
        warnings, hashes = [*self.warnings, *self.untrained_warnings], [self._fingerprint()]
        texts = {
            **self.texts,
            RECIPE_FILE: self._recipe(folder).encode("utf-8", output_files.UNDECODED),
        }
        sizes = {**self.file_sizes, RECIPE_FILE: len(texts[RECIPE_FILE])}
        tensors = {buffer.name: new_buffer(buffer) for buffer in self.rebuilt_buffers}
        total = sum(sizes.values())
        with atomic_folder(folder, checkpoint.protected, sizes, force=force) as staged:
            for table in self.stored:
                before = self._read(table)
                after = tensors[table.name] = self.resized(table, before)
                hashes += [table_hash(before), table_hash(after)]
                bad, bad_after = nonfinite_rows(before), len(nonfinite_rows(after))
                if bad:
                    message = (
                        f"{table.name} contains NaN or infinity in row{'s' * (len(bad) > 1)} "
                        f"{describe_rows(bad)}"
                    )
                    warnings.append(
                        f"{message}; so do {bad_after} of the {len(after)} rows of the output."
                    )
                elif bad_after:
                    warnings.append(
                        f"{bad_after} new rows of {table.name} overflow {table.dtype} to infinity."
                    )
            texts[RECIPE_FILE] = self._recipe(folder, hashes).encode(
                "utf-8", output_files.UNDECODED
            )
            write_files(
                self.written,
                staged,
                self.layouts,
                tensors.__getitem__,
                texts,
                lambda n: progress(n, total),
            )
            size = sum((staged / name).stat().st_size for name in self.file_sizes)
            check(staged)
        return ResizeResult(
            self, folder, tuple(warnings), size, round(time.perf_counter() - start, 3), self.choices
        )

    @property
    def choices(self) -> tuple[str, ...]:
        """Settings that a method chose from each table's values, as sentences."""
        return tuple(
            f"{name}: {choice.reason}" for name, choice in self.chosen.items() if choice.reason
        )

    def _read(self, table: TablePlan) -> NDArray[Any]:
        return read_floats(self.checkpoint.names[table.name], table.name)[
            : table.rows_before
        ]  # fewer if held out

    def resized(self, table: TablePlan, before: NDArray[Any]) -> NDArray[Any]:
        """Resize the values of one of `tables`, shape (rows_before, hidden_size), to (rows_after,
        hidden_size).
        """
        positions = table.rows_after - table.reserved_rows
        try:
            return resize_with_reserved(
                before, table.reserved_rows, positions, self.options_of(table)
            )
        except MemoryError:
            shape = f"({table.rows_after:,}, {table.hidden_size:,})"
            raise ResizeError(
                f"Out of memory: {table.name} of shape {shape} is too large.", "Lower --to."
            ) from None


@dataclass(frozen=True, eq=False, repr=False)
class ResizeResult(Result, shows="output seconds"):
    """The result of a resize; its JSON includes the values of the plan."""

    plan: ResizePlan = field(metadata=not_in_json)
    output: Path  # output folder
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)  # those of the plan first
    bytes_written: int = 0  # total size of the output files
    seconds: float = 0.0  # wall-clock time
    choices: tuple[str, ...] = ()  # settings that a method chose from each table's values
    dry_run: bool = False  # True if nothing was written
    verified: bool = False  # True if the output was verified before it was moved into place

    @property
    def add_weights(self) -> str | None:
        """The command that copies the weights and all other files to an output without them; None
        if it has them.
        """
        paths = (f"{self.plan.checkpoint.root}/.", f"{self.output}/")
        return shlex.join(["cp", "-rLn", "--reflink=auto", *paths]) if self.plan.edit_only else None

    @property
    def load_code(self) -> str | None:
        """Python code that loads the output; None if its files are not enough to load it."""
        plan, checkpoint = self.plan, self.plan.checkpoint
        is_custom = (
            plan.ref.tensor is not None
            or "auto_map" in checkpoint.config
            or checkpoint.adapter_of is not None
        )
        is_other_type = checkpoint.config.get("model_type", plan.model_type) != plan.model_type
        if is_custom or is_other_type or not checkpoint.has_config or plan.edit_only:
            return None
        stored = checkpoint.variant
        is_encoder = MODULES in checkpoint.copied
        name = json.dumps(str(self.output if is_encoder else self.output / checkpoint.model))
        if is_encoder:
            arguments = f', model_kwargs={{"variant": "{stored}"}}' if stored else ""
            return (
                "from sentence_transformers import SentenceTransformer; "
                f"SentenceTransformer({name}{arguments})"
            )
        arguments = f', variant="{stored}"' if stored else ""
        model_class = checkpoint.model_class or "AutoModel"
        return (
            f"from transformers import {model_class}; "
            f"{model_class}.from_pretrained({name}{arguments})"
        )

    def json_more(self) -> ResizePlan:
        """Return the plan, whose JSON values are included."""
        return self.plan


@accepts_settings(CheckpointRef, Resize)
def plan_resize(
    reference: str | os.PathLike[str], to: int | str, method: str | None = None, **settings: Any
) -> ResizePlan:
    """Plan a resize from a checkpoint's config and headers, without reading weights or writing
    anything.

    Args:
        reference, to, method, settings: As in `resize`.

    Raises:
        CtxextendError: As `resize`, except OutputError.
    """
    ref, settings = split_ref(reference, settings)
    return plan_model(open_model(ref), Resize(to, method=method, **settings))


def plan_model(
    model: OpenedModel,
    settings: Resize,
    recorded: Mapping[str, str] | None = None,
    *,
    cut: int | None = None,
    checks_width: bool = True,
) -> ResizePlan:
    """Plan the resize of an open checkpoint; see `plan_resize`, and `ResizePlan` for `recorded`.

    `cut` plans as if the tables had only their first `cut` positions, so that the others judge a
    method: held-out rows. `checks_width` fails if the config states another width than a table has;
    `verify` reports that as a failed check.
    """
    model = model.with_code() if settings.copy_code else model
    checkpoint = model.checkpoint
    check_tensor(model)
    check_own_code(model)

    def describe(table: FoundTable) -> TableShape:
        (rows, hidden_size), dtype, file = describe_table(checkpoint, table)
        first = (
            rows if cut is None else min(rows, table.location.rows(table.location.key_value(cut)))
        )
        return (first, hidden_size), dtype, file

    settings = with_length(settings, model.tables, describe)
    tables = plan_tables(
        model.tables, settings, describe, recorded or {}, bool(checkpoint.config) and cut is None
    )
    for table in tables:
        if checks_width and table.is_stored:
            check_width(table.location, table.hidden_size, table.name)
    learned = max(table.max_len_before for table in tables)
    given = settings.choice.keep_first
    kept = limit_kept_first(settings.choice, learned).keep_first
    if kept < given:
        settings = replace(settings, keep_first=kept)
        model = with_note(
            model,
            f"--keep-first {given} is taken as {learned}: the table has {learned} learned rows.",
        )
    edits, buffers = plan_edits(model, tables), plan_buffers(checkpoint, tables)
    return ResizePlan(with_type_note(model), settings, tables, edits, *buffers, recorded or {})


@accepts_settings(CheckpointRef, Resize)
def resize(
    reference: str | os.PathLike[str],
    to: int | str,
    method: str | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    **settings: Any,
) -> ResizeResult:
    """Resize the position table of a checkpoint and save the result as a new checkpoint.

    Args:
        reference: A local folder or weights file, the name of a bundled checkpoint, or a Hub id
            (downloaded if needed).
        to: The new context length, in usable positions (reserved rows are added): an integer ≥ 1,
            ``"4k"`` for 4,096, or ``"4x"`` for four times the current length.
        method: A method name from `list_methods`, optionally with settings, such as
            ``"bands:sigma=4,gain=1.2"``. Defaults to ``"auto"``, or ``"truncate"`` when shrinking.
        output: Output folder. Defaults to ``<name>-<to>`` in the current folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        settings: Other fields of `Resize` (``keep_first``, ``drop_last``, ``part``, ``fix_limits``,
            ``copy_code``) and of `CheckpointRef` (``revision``, …, and ``tensor`` for a custom
            model type), as keyword arguments.

    Raises:
        SourceError: The reference does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no known position table.
        ResizeError: The length, method or another setting is invalid for this model.
        OutputError: The output exists, or cannot be written.
    """
    return plan_resize(reference, to, method, **settings).execute(output, force=force)


def output_path(output: str | os.PathLike[str] | None, default: Path) -> Path:
    """Return the output folder: the given one with ``~`` expanded, or the default."""
    return default if output is None else Path(os.path.expanduser(output))  # noqa: PTH111 - never raises


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's row-major bytes, as recorded in recipes."""
    import hashlib  # slow to import, and not needed for a plan

    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()
