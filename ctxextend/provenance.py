"""The provenance of an output: what its recipe records about how it was created."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import RECIPE_KEY, gguf_of
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    RecipeError,
    ResizeError,
    one_line,
)
from ctxextend.recipe import (
    MAX_CONTEXT,
    RECIPE_FILE,
    TRAINABLE,
    CheckpointRef,
    Convert,
    Recipe,
    Resize,
)
from ctxextend.recipe_file import YAML_ERRORS, RecipeFile, parse_recipe, parse_yaml
from ctxextend.recipe_text import yaml_text
from ctxextend.tables.apply import learned_rows_after
from ctxextend.tables.method_facts import TRUNCATE
from ctxextend.tables.methods import METHODS

FINGERPRINT = "source_fingerprint"  # of all weights; see `Weights.fingerprint`
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_NESTING = 16  # depth of nested recipes


class Provenance(NamedTuple):
    """How an output was created, according to its recipe."""

    base: CheckpointRef  # the checkpoint that was resized or trained
    settings: Resize  # how it was resized; after training only, its length
    convert: Convert | None = None  # how it was converted, if it was
    trainable: str | None = None  # what was trained: one of `TRAINABLE`, or None
    adapted: frozenset[str] = frozenset()  # tensors that adapters changed, with ``*`` for layers
    method: str | None = None  # the (first) method that created rows; None if it is not known
    # The name of a method that is not registered; `settings` has another one, and rows cannot be
    # reproduced.
    unregistered: str | None = None
    methods: Mapping[str, str] = {}  # per table, if they differ
    # Per table, before and after, if recorded.
    rows: Mapping[str, tuple[int, int]] = {}
    hashes: Mapping[str, str] = {}  # see `source_hashes`
    written: Mapping[str, str] = {}  # SHA-256 of each written table
    values: Mapping[str, Any] = {}  # all values of the recipe
    before: "Provenance | None" = None  # the provenance of `base`, which is recorded by training

    @property
    def chain(self) -> "tuple[Provenance, ...]":
        """This provenance and earlier ones, newest first.

        Each states everything that was trained since then.
        """
        if self.before is None:
            return (self,)
        before = self.before._replace(
            trainable=_trained_by_both(self.trainable, self.before.trainable),
            adapted=self.adapted | self.before.adapted,
        )
        return (self, *before.chain)


class BaseCheckpoint(NamedTuple):
    """The base checkpoint of a resized or trained one."""

    ref: CheckpointRef
    # Expected hashes of its weights; see `source_hashes`.
    hashes: Mapping[str, str] = {}
    # From the newest checkpoint to the base; empty if the user named the base.
    chain: tuple[Provenance, ...] = ()


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe of a folder or GGUF file; None if it is missing or cannot be read."""
    file = gguf_of(checkpoint)
    with suppress(CheckpointError, RecipeError):
        if RECIPE_FILE in checkpoint.copied:
            return parse_provenance(checkpoint.text(RECIPE_FILE), RECIPE_FILE, checkpoint.root)
        if file is not None and RECIPE_KEY in file.metadata.values:
            text = str(file.metadata.values[RECIPE_KEY])
            return parse_provenance(text, RECIPE_KEY, checkpoint.root)
    return None


def find_base(
    provenance: Provenance | None, named: str | None, tokenizer: str | None = None
) -> BaseCheckpoint | None:
    """Return the base that the user named, or the oldest in a checkpoint's recipe.

    Args:
        provenance: What the checkpoint's recipe records, if anything.
        named: The base that the user named.
        tokenizer: The tokenizer that the user named; it replaces that of the base.
    """
    if named is not None:
        # As the resize read the base.
        read = provenance.chain[-1].base if provenance else CheckpointRef(named)
        ref = CheckpointRef(
            source=named,
            tokenizer=tokenizer,
            model_type=read.model_type,
            trained_length=read.trained_length,
        )
        return BaseCheckpoint(ref)
    if provenance is None:
        return None
    first = provenance.chain[-1]
    tokenizers = (tokenizer, *(step.base.tokenizer for step in provenance.chain))
    ref = replace(first.base, tokenizer=next(filter(None, tokenizers), None))
    return BaseCheckpoint(ref, first.hashes, provenance.chain)


def trainings(provenance: Provenance | None) -> list[Mapping[str, Any]]:
    """Return which text each training run used, as far as a checkpoint's recipe records it.

    See `trained_texts` for their form.
    """
    runs = list[Mapping[str, Any]]()
    for step in provenance.chain if provenance else ():
        facts = step.values.get("provenance") or {}
        train = step.values.get("train") or {}
        trained = facts.get("trained")
        if isinstance(trained, Mapping):
            text = {name: trained[name] for name in ("data", "held_out") if name in trained}
            runs.append({"text_field": train.get("text_field", "text"), **text})
        earlier = facts.get("source_trainings")
        if isinstance(earlier, list):
            runs += earlier
    return runs


def _trained_by_both(*parts: str | None) -> str | None:
    """Return what two trainings changed together, as one of `TRAINABLE`, or None."""
    trained = {part for part in parts if part}
    if len(trained) > 1 and "all-but-positions" in trained:
        return "all"
    return max(trained, key=[*TRAINABLE].index, default=None)


def parse_provenance(
    text: str, name: str, folder: Path | None = None, depth: int = 1
) -> Provenance:
    """Parse the recipe of an output, which is untrusted.

    Args:
        text: The recipe.
        name: What error messages call it.
        folder: See `parse_recipe`.
        depth: How many recipes contain each other, with this one.

    Raises:
        RecipeError: It is not a valid recipe of an output.
    """
    try:
        if depth > MAX_NESTING:
            raise RecipeError(f"more than {MAX_NESTING} nested recipes.")
        unregistered = None
        try:
            file = parse_recipe(text, name, folder=folder)
        except RecipeError as error:
            key = _method_key(text, name)
            if key is None:
                raise
            try:  # the method may be unregistered
                file, unregistered = _parse_unregistered(text, name, folder, key)
            except RecipeError:
                raise error from None
        return _provenance_of(file, unregistered, name, depth)
    except (*YAML_ERRORS, CtxextendError) as error:
        if depth > 1:
            raise
        message = f"{name} is not a valid recipe of an output: {one_line(error)}"
        raise RecipeError(message, "Create the output again, or remove that file.") from None


def _method_key(text: str, name: str) -> str | None:
    """Return the key of a recipe that states its method, with a dot; None if it states none."""
    stated = dict(parse_yaml(text, name))
    for step in ("resize", "convert"):
        if f"{step}.method" in stated:
            return f"{step}.method"
    return None


def _parse_unregistered(
    text: str, name: str, folder: Path | None, key: str
) -> tuple[RecipeFile, str]:
    """Parse a recipe whose method is not registered, and return this method.

    The recipe gets a method that keeps no learned rows.
    """
    method = str(dict(parse_yaml(text, name))[key].value)
    file = parse_recipe(text, name, [f"{key}=linear"], folder=folder)
    step, _, _ = key.partition(".")
    file.values[step]["method"] = method
    return file, method


def _stated_length(convert: Convert | None, facts: Mapping[str, Any]) -> int | str:
    """Return the length of a conversion, or the one that a training records.

    Raises:
        RecipeError: The recipe of a conversion to no positions states none.
    """
    if convert is None:
        length: int = facts["max_len"]
        return length
    if convert.to is None:
        raise RecipeError("convert: to is missing, which every output states.")
    return convert.to


def _provenance_of(file: RecipeFile, unregistered: str | None, name: str, depth: int) -> Provenance:
    recipe = file.recipe
    facts = file.provenance
    settings = recipe.resize
    if settings is None:  # training keeps the length
        method = recipe.convert.method if recipe.convert else None
        settings = Resize(_stated_length(recipe.convert, facts), method=method)
    methods = table_methods(file)
    trainable, adapted = _trained_parts(recipe, facts)
    before = None
    if facts.get("source_recipe") is not None:
        before = parse_provenance(yaml_text(facts["source_recipe"]), name, depth=depth + 1)
    return Provenance(
        base=recipe.checkpoint,
        settings=settings,
        convert=recipe.convert,
        trainable=trainable,
        adapted=adapted,
        method=_first_method(facts, methods, unregistered),
        unregistered=unregistered,
        methods=methods,
        rows=_recorded_rows(facts),
        hashes=source_hashes(facts),
        written=_written_hashes(facts),
        values=file.values,
        before=before,
    )


def _written_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded SHA-256 of each table that was written."""
    hashes = dict[str, str]()
    for name, table in _tables(facts).items():
        if "sha256_after" in table:
            hashes[name] = str(table["sha256_after"])
    return hashes


def _trained_parts(recipe: Recipe, facts: Mapping[str, Any]) -> tuple[str | None, frozenset[str]]:
    """Return what was trained, as one of `TRAINABLE`, and the tensors that adapters changed."""
    if recipe.train is None:
        return None, frozenset()
    adapted = frozenset[str]()
    if recipe.train.lora:
        adapted = frozenset(map(str, facts["trained"]["adapted"]))
    trained = facts.get("trained") or {}
    if trained.get("saved_step") == 0:  # no step was better than the untrained weights
        return None, adapted
    trainable = recipe.train.trainable or "positions"
    if adapted and trainable == "all-but-positions":
        return None, adapted
    return trainable, adapted


def _first_method(
    facts: Mapping[str, Any], methods: Mapping[str, str], unregistered: str | None
) -> str | None:
    """Return the name of the (first) method that created rows; None if it is not known."""
    for text in (str(facts.get("method")), *methods.values()):
        name = text.partition(":")[0]
        if unregistered or name in METHODS or name == TRUNCATE:
            return name
    return None


def _recorded_rows(facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the numbers of rows before and after, by table, if they are recorded."""
    rows = dict[str, tuple[int, int]]()
    for name, table in _tables(facts).items():
        before: Any = table.get("rows_before")
        after: Any = table.get("rows_after")
        if _is_count(before) and _is_count(after):
            rows[name] = (before, after)
    return rows


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_CONTEXT


def _tables(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what is recorded about each table, by its name."""
    recorded = facts.get("tables")
    if not isinstance(recorded, list):
        return {}
    tables = dict[str, Mapping[str, Any]]()
    for item in recorded:
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            tables[item["name"]] = item
    return tables


def source_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded hashes of the source: SHA-256 by table, then its `FINGERPRINT`."""
    hashes = {name: str(table.get("sha256_before")) for name, table in _tables(facts).items()}
    hashes[FINGERPRINT] = str(facts.get(FINGERPRINT))
    return {name: value for name, value in hashes.items() if SHA256.fullmatch(value)}


def table_methods(file: RecipeFile) -> dict[str, str]:
    """Return the recorded method of each table if they differ.

    It is empty if the recipe's method was changed since.
    """
    resize = file.recipe.resize
    facts = file.provenance
    if resize is None or resize.method != facts.get("method"):
        return {}
    methods = dict[str, str]()
    for name, table in _tables(facts).items():
        if "method" in table:
            methods[name] = replace(resize, method=str(table["method"])).choice.text
    return methods


def learned_before(
    chain: Sequence[Provenance], table: str, reserved: int, maximum: int
) -> NDArray[np.bool_] | None:
    """Return a mask of the rows that were learned before a chain of resizes, shape (positions,).

    Args:
        chain: The provenances, newest first.
        table: The name of the table.
        reserved: Its number of reserved rows.
        maximum: Its number of rows now.

    Returns:
        The mask; None if the chain does not record it.
    """
    oldest_first = chain[::-1]
    rows = [resize.rows.get(table, (0, 0)) for resize in oldest_first]
    is_recorded = all(reserved < min(counts) and max(counts) <= maximum for counts in rows)
    if not rows or not is_recorded or any(resize.unregistered for resize in chain):
        return None
    steps = []
    with suppress(ResizeError):  # an impossible resize
        for (_, after), resize in zip(rows, oldest_first, strict=True):
            method = resize.methods.get(table, resize.settings.method)
            choice = replace(resize.settings, method=method).choice
            steps.append((after - reserved, choice))
        first, _ = rows[0]
        return learned_rows_after(first - reserved, steps)
    return None
