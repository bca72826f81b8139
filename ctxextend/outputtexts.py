"""The text files of an output: edited JSON, the index, the recipe with its provenance, the model card."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ctxextend.checkpoints.card import model_card
from ctxextend.checkpoints.jsontext import delete, edit, read_text
from ctxextend.recipe import Recipe
from ctxextend.tables.methods import METHODS
from ctxextend.version import __version__

if TYPE_CHECKING:
    from ctxextend.plan import ResizePlan

__all__ = ["CARD_FILE", "RECIPE_FILE", "consequences", "output_texts"]

RECIPE_FILE = "ctxextend.yaml"
CARD_FILE = "README.md"

# Stands for a hash that is not known yet, so that a plan's texts are as long as the final ones.
UNKNOWN = ("f" * 64, "f" * 64)

Hashes = Mapping[str, tuple[str, str]]


def output_texts(plan: "ResizePlan", hashes: Hashes) -> dict[str, str]:
    """Return every text file that a plan edits or makes, whole, by its path below the output.

    Args:
        plan: The plan.
        hashes: SHA-256 of each table before and after, by the table's name; a missing one stands as a placeholder.

    Raises:
        CheckpointError: A file of the source cannot be read.
    """
    root = plan.checkpoint.root
    texts = {}
    for name in dict.fromkeys(change.file for change in plan.edits):
        changes = {change.path: change.after for change in plan.edits if change.file == name}
        texts[name] = edit(read_text(root / name), changes)
    if plan.edits_index:
        texts[plan.checkpoint.index_file] = _index_text(plan)
    texts[RECIPE_FILE] = _recipe_text(plan, hashes)
    texts[CARD_FILE] = _card_text(plan)
    return texts


def consequences(plan: "ResizePlan") -> str:
    """Say in a sentence what the new length is worth before any training."""
    before, after = plan.max_len_before, plan.max_len_after
    if after == before:
        return "Its table is the old one, row for row."
    if after < before:
        return f"Texts of up to {after} tokens give exactly what they gave; longer ones no longer fit."
    method = METHODS[plan.method]
    short = method.short_inputs
    if method.keeps_learned_rows and not plan.recipe.resize.options.keeps_learned_rows:
        short = "nothing that it had learned of positions is left, so short texts change too"
    return f"It has not been trained at {after}: with {plan.method}, {short}; beyond {before}, {method.long_inputs}."


def _index_text(plan: "ResizePlan") -> str:
    checkpoint = plan.checkpoint
    text = read_text(checkpoint.root / checkpoint.index_file)
    metadata = (checkpoint.index or {}).get("metadata")
    if isinstance(metadata, dict):
        totals = {"total_size": _tensor_bytes(plan)}
        if isinstance(metadata.get("total_parameters"), int):
            added = sum((table.rows_after - table.rows_before) * table.hidden_size for table in plan.tables)
            totals["total_parameters"] = metadata["total_parameters"] + added
        text = edit(text, {("metadata", key): value for key, value in totals.items() if key in metadata})
    return delete(text, ("weight_map",), plan.dropped)


def _tensor_bytes(plan: "ResizePlan") -> int:
    total = 0
    for file in plan.checkpoint.weights:
        layout = plan.layouts.get(plan.checkpoint.relative(file))
        total += sum(part.size for part in (layout.placements if layout else file.entries.values()))
    return total


def _recipe_text(plan: "ResizePlan", hashes: Hashes) -> str:
    source, recipe = plan.checkpoint.source, plan.recipe
    if source.kind == "hub" and source.revision is not None:
        recipe = Recipe(recipe.source, recipe.resize, source.revision)
    tables = [
        {
            "name": table.name,
            "rows_before": table.rows_before,
            "rows_after": table.rows_after,
            "sha256_before": hashes.get(table.name, UNKNOWN)[0],
            "sha256_after": hashes.get(table.name, UNKNOWN)[1],
        }
        for table in plan.tables
    ]
    provenance: dict[str, Any] = {
        "family": plan.family.model_type,
        "method": plan.method,
        **({"convention": METHODS[plan.method].convention} if plan.makes_rows else {}),
        "revision": source.revision,
        "tables": tables,
        "versions": {"ctxextend": __version__, "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__},
    }
    return recipe.to_yaml(plan.makes_rows, provenance)


def _card_text(plan: "ResizePlan") -> str:
    source = plan.checkpoint.source
    card = read_text(source.folder / CARD_FILE) if CARD_FILE in plan.checkpoint.copied else None
    base_model = source.hub_id or (None if card and "\nbase_model:" in card else source.name)
    return model_card(card, base_model, f"{source.name}-{plan.max_len_after}", _card_section(plan))


def _card_section(plan: "ResizePlan") -> str:
    name = plan.checkpoint.source.hub_id or plan.checkpoint.source.name
    tables = ", ".join(f"`{table.name}`" for table in plan.tables)
    return (
        f"## Context length {plan.max_len_after}\n\n"
        f"{name} with its position table ({tables}) resized from {plan.max_len_before} to {plan.max_len_after} token "
        f"positions by ctxextend {__version__}, method `{plan.method}`; no other weight was changed. "
        f"{consequences(plan)} `{RECIPE_FILE}` holds the recipe.\n"
    )
