"""The text files of an output (edited JSON, index, recipe, model card), and what the user should know of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import is_code
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import delete, edit, load_object, read_bytes
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.checkpoints.safetensors_file import OF_ML_DTYPES
from ctxextend.checkpoints.source import OUTSIDE, as_copied
from ctxextend.errors import CheckpointError
from ctxextend.plan.edits import TablePlan, makes_rows, method_name
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.recipe import RECIPE_FILE, Recipe, Resize
from ctxextend.recipe_file import recipe_text
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.method_facts import UNCHANGED
from ctxextend.tables.methods import METHODS
from ctxextend.version import __version__

CARD_FILE = "README.md"
RECIPE_POINTER = f" `{RECIPE_FILE}` holds the recipe."
# What a card says before it tells what a new length is worth without training.
UNTRAINED = "It has not been trained at {}:"
# How bytes that are no UTF-8 live through a text.
UNDECODED = "surrogateescape"

# Where the Hub's own reader finds it: white space and a byte order mark may stand before it.
FRONT_MATTER = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# Longer and deeper front matter takes long to read, and is left as it is.
MAX_FRONT_MATTER = 100_000
# The key and whatever is indented below it or listed at its own level.
BASE_MODEL = re.compile(r"^base_model:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE)

# Files whose auto_map names the code that transformers runs in the place of its own, where it is told to trust it.
MAPPED = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
NAMES_SHOWN = 5


def edited_texts(checkpoint: Checkpoint, edits: Sequence[Edit]) -> dict[str, str]:
    """Return the JSON files that change or that the source lacks, by their paths below the output.

    Raises:
        CheckpointError: A file of the source cannot be read.
    """
    texts = dict(checkpoint.made)
    for name in dict.fromkeys(change.file for change in edits):
        values = {change.path: change.after for change in edits if change.file == name}
        texts[name] = edit(checkpoint.text(name), values)
    return texts


def index_text(
    checkpoint: Checkpoint, layouts: Mapping[str, Layout], tables: Sequence[TablePlan], dropped: Sequence[str]
) -> str:
    """Return the index of shards, with the totals and names that it must have.

    Args:
        checkpoint: The source.
        layouts: Of each weights file that is rewritten, by its name in the output.
        tables: Its tables.
        dropped: Tensors that are left out.
    """
    text = checkpoint.text(checkpoint.index_file)
    metadata = (checkpoint.index or {}).get("metadata")
    if isinstance(metadata, dict):
        kept = {checkpoint.output_name(file): file.tensor_bytes for file in checkpoint.weights}
        totals = {"total_size": sum((kept | {name: layout.tensor_bytes for name, layout in layouts.items()}).values())}
        if isinstance(metadata.get("total_parameters"), int | float):
            added = sum((table.rows_after - table.rows_before) * table.hidden_size for table in tables)
            totals["total_parameters"] = metadata["total_parameters"] + added
        text = edit(text, {("metadata", key): value for key, value in totals.items() if key in metadata})
    return delete(text, ("weight_map",), dropped)


def hash_placeholders(tables: Sequence[TablePlan]) -> dict[str, tuple[str, str]]:
    """Return what stands in a recipe for the SHA-256 of each table before and after, until they are known."""
    return {
        table.name: (f"{'f' * 60}{2 * number:04x}", f"{'f' * 60}{2 * number + 1:04x}")
        for number, table in enumerate(tables)
    }


def output_recipe(
    model: OpenedModel, settings: Resize, tables: Sequence[TablePlan], hashes: Mapping[str, tuple[str, str]]
) -> str:
    """Return the recipe that lies beside an output, and how the output came about.

    Args:
        model: The source.
        settings: What was asked for.
        tables: What became of its tables.
        hashes: SHA-256 of each table before and after, by the table's name.
    """
    source, method = model.checkpoint.source, method_name(settings, tables)
    # A branch may move on: the commit is written down.
    pinned = source.kind == "hub" and source.revision is not None
    ref = replace(model.ref, revision=source.revision) if pinned else model.ref
    versions = {"ctxextend": __version__, "numpy": np.__version__}
    if any(table.dtype in OF_ML_DTYPES for table in tables):
        import ml_dtypes

        versions["ml_dtypes"] = ml_dtypes.__version__
    provenance: dict[str, Any] = {
        "family": model.architecture.family.model_type,
        "method": method,
        **({"convention": METHODS[method].convention} if makes_rows(tables) else {}),
        "revision": source.revision,
        "tables": [
            {
                "name": table.name,
                "rows_before": table.rows_before,
                "rows_after": table.rows_after,
                "sha256_before": hashes[table.name][0],
                "sha256_after": hashes[table.name][1],
            }
            for table in tables
        ],
        "versions": versions,
    }
    return recipe_text(Recipe(ref, settings), provenance, makes_rows=makes_rows(tables))


def card_text(model: OpenedModel, settings: Resize, tables: Sequence[TablePlan], edits: Sequence[Edit]) -> str:
    """Return the model card of an output: the source's own, and a section on the resize."""
    checkpoint, source, after = model.checkpoint, model.checkpoint.source, settings.to
    name = printable(source.hub_id or source.name)
    names = ", ".join(f"`{table.name}`" for table in tables)
    is_changed = any(table.is_changed for table in tables)
    what = f"resized from {_old_lengths(tables)} to {after} token positions"
    section = (
        f"## Context length {after}\n\n"
        f"{name} with its position table{'s' * (len(tables) > 1)} ({names}) "
        f"{what if is_changed else f'of {after} token positions as it was'} by ctxextend {__version__}, method "
        f"`{method_name(settings, tables)}`; no other weight was changed. "
        f"{' '.join((consequences(settings, tables), *_low_limits(settings, tables, edits)))}{RECIPE_POINTER}\n"
    )
    # Whatever bytes a card holds are kept: what is no UTF-8 becomes surrogates here and bytes again when written.
    has_card = CARD_FILE in checkpoint.copied
    card = read_bytes(source.folder / CARD_FILE).decode("utf-8", UNDECODED) if has_card else None
    return model_card(
        card and card.replace(RECIPE_POINTER, ""),
        name,
        is_hub_id=source.hub_id is not None,
        title=f"{printable(source.name)}-{after}",
        section=section,
    )


def printable(name: str) -> str:
    """Return a name on one line, without secrets, bytes that are no text written out."""
    return " ".join(name.encode("utf-8", UNDECODED).decode("utf-8", "backslashreplace").split())


def model_card(card: str | None, base_model: str, *, is_hub_id: bool, title: str, section: str) -> str:
    """Return a card with `base_model` in its front matter and a section added at its end.

    Args:
        card: The source's card; None where it has none.
        base_model: The model that this one was made from.
        is_hub_id: Whether that is its name on the Hub; a folder's name does not replace what the card says.
        title: The heading of a new card.
        section: Markdown, from its heading on.
    """
    card = f"# {title}\n" if card is None else card
    newline = "\r\n" if "\r\n" in card else "\n"
    line = yaml.safe_dump({"base_model": base_model}, allow_unicode=True, width=1000).replace("\n", newline)
    found = FRONT_MATTER.match(card)
    if found is None:
        card = f"---{newline}{line}---{newline}{card}"
    elif is_hub_id or not BASE_MODEL.search(found["yaml"]):
        front = BASE_MODEL.sub("", found["yaml"]) + line
        if _is_mapping(front):  # flow style, or no YAML at all, is the author's to mend
            card = card[: found.start("yaml")] + front + card[found.end("yaml") :]
    return card.rstrip() + 2 * newline + section.strip().replace("\n", newline) + newline


def _is_mapping(text: str) -> bool:
    """Whether YAML is a mapping, seen without building its values: a stranger wrote them."""
    if len(text) > MAX_FRONT_MATTER:
        return False
    try:
        return isinstance(yaml.compose(text), yaml.MappingNode)
    except (yaml.YAMLError, RecursionError):
        return False


def consequences(settings: Resize, tables: Sequence[TablePlan]) -> str:
    """Say in a sentence what the new length is worth before any training."""
    after, options = settings.to, settings
    if not any(table.is_changed for table in tables):
        return "Its table is the old one, row for row."
    if not makes_rows(tables):
        return f"Texts of up to {after} tokens give exactly what they gave; longer ones no longer fit."
    method = options.facts
    but = f" but for the first {options.kept_first}" if options.kept_first else ""
    short = f"{method.short_inputs}{but}"
    if all(options.kept_of(table.max_len_before) == table.max_len_before for table in tables):
        short = UNCHANGED
    if method.keeps_learned_rows and not options.keeps_learned_rows:
        short = f"nothing that it had learned of positions is left{but}, so short texts change too"
    return (
        f"{UNTRAINED.format(after)} with {method.name}, {short}; beyond {_old_lengths(tables)}, {method.long_inputs}."
    )


def _old_lengths(tables: Sequence[TablePlan]) -> str:
    """Return the tables' old lengths in words: one number where all agree."""
    lengths = {table.part: table.max_len_before for table in tables}
    if len(set(lengths.values())) == 1:
        return str(tables[0].max_len_before)
    return " and ".join(f"{length} ({part})" for part, length in lengths.items())


def _low_limits(settings: Resize, tables: Sequence[TablePlan], edits: Sequence[Edit]) -> Iterator[str]:
    """Yield a sentence where side files stated less than the old table had: such texts now give something else."""
    before = tables[0].max_len_before
    low = [
        f"{edit.file} {edit.key} {edit.before}"
        for edit in edits
        if edit.is_limit and isinstance(edit.before, int) and edit.before < before
    ]
    if low and (makes_rows(tables) or settings.mend_limits):
        yield (
            f"Limits below the table's {before} positions are raised too ({', '.join(low)}): longer texts were cut "
            "there, are now read whole, and so give something else."
        )


def plan_warnings(
    model: OpenedModel, settings: Resize, tables: Sequence[TablePlan], edits: Sequence[Edit], *, rewrites: bool
) -> Iterator[str]:
    """Yield a sentence for whatever is not as one would expect, known from shapes alone.

    Args:
        model: The source.
        settings: What was asked for.
        tables: What becomes of its tables.
        edits: Values that change in JSON files.
        rewrites: Whether any weights file is rewritten.
    """
    checkpoint, is_changed = model.checkpoint, any(table.is_changed for table in tables)
    if not is_changed:
        flags = settings.method_flags
        ignored = f" {', '.join(flags)} had nothing to do." if flags else ""
        what = "the same weights as safetensors" if rewrites else "a copy"
        what += ", with the limits mended" if edits else ""
        yield f"The table has {tables[0].max_len_before} positions already: the output is {what}.{ignored}"
    yield from _low_limits(settings, tables, edits)
    if not checkpoint.has_config and not checkpoint.is_adapter:
        lengths = {table.config_key: table.location.key_value(table.max_len_after) for table in tables}
        keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield f"There is no config.json: the one that transformers will need must state {keys}."
    if checkpoint.is_adapter and is_changed:
        yield (
            f"The adapter now fits {checkpoint.base} at {settings.to} positions alone: resize that too, and load the "
            "adapter onto the result, since adapter_config.json still names the old one."
        )
    if model.ref.table is not None and is_changed:
        lengths_now = {length for table in tables for length in (table.rows_before, table.max_len_before)}
        for entry in (entry for file in checkpoint.weights for entry in file.entries.values()):
            if entry.name != model.ref.table and "pos" in entry.name and lengths_now & set(entry.shape):
                yield f"{entry.name} {list(entry.shape)} may follow the length too, and is left as it is."
    yield from file_warnings(checkpoint)


def file_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a sentence for links that lead out of a folder, for code in it, and for what names code."""
    outside = [name for name, why in checkpoint.omitted.items() if why == OUTSIDE]
    if outside:
        are = "are links that lead" if len(outside) > 1 else "is a link that leads"
        yield f"{_listed(outside)} {are} out of the folder, and left out. {as_copied(checkpoint.root)}"
    copied = [name for name in checkpoint.copied if is_code(PurePosixPath(name))]
    if copied:
        yield f"The folder holds code, which was not run and is copied: {_listed(copied)}."
    if checkpoint.code:
        yield (
            f"The folder holds code, which was not run and is left out: {_listed(checkpoint.code)}. Keep it with "
            "--keep-code."
        )
    mapped = list(dict.fromkeys(_mapped(checkpoint)))
    if mapped:
        yield (
            f"The configs' auto_map still names code, {_listed(mapped)}: whoever loads the output with "
            "trust_remote_code=True runs it, wherever it lies."
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _mapped(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the classes that auto_map names, such as ``modeling_x.XModel`` or ``owner/repo--modeling_x.XModel``."""
    for name in checkpoint.copied:
        if PurePosixPath(name).name not in MAPPED:
            continue
        try:
            mapped = load_object(checkpoint.root / name).get("auto_map")
        except CheckpointError:  # its reader, where it has one, says so
            continue
        for value in mapped.values() if isinstance(mapped, Mapping) else ():
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def nonfinite_warnings(table: TablePlan, before: NDArray[Any], after: NDArray[Any]) -> Iterator[str]:
    """Yield a sentence where a table holds what is no number, or got it by the method or the dtype.

    Args:
        table: What became of it.
        before: Its rows, shape (rows_before, hidden_size).
        after: Its new rows, shape (rows_after, hidden_size).
    """
    bad, written = nonfinite_rows(before), len(nonfinite_rows(after))
    if bad:
        listed = ", ".join(map(str, bad[:10])) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        yield (
            f"{table.name} holds NaN or infinity in row{'s' * (len(bad) > 1)} {listed}; "
            f"{written} of the {len(after)} rows that were written hold them."
        )
    elif written:
        yield f"{written} new rows of {table.name} go beyond what {table.dtype} can hold, and are infinite."
