"""What a trained checkpoint says of itself: its recipe, its card and its log."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ctxextend.checkpoints.card import model_card
from ctxextend.checkpoints.json_edit import read_bytes
from ctxextend.errors import RecipeError
from ctxextend.plan.changes import CARD_FILE
from ctxextend.plan.outputtexts import RECIPE_POINTER, UNDECODED, UNTRAINED, printable
from ctxextend.provenance import read_provenance
from ctxextend.recipe import RECIPE_FILE, Recipe
from ctxextend.recipe_file import recipe_text, recipe_values, yaml_text
from ctxextend.training.opening import Opened
from ctxextend.training.reports import TrainResult, counted
from ctxextend.version import __version__

__all__ = ["LOG_FILE", "output_texts"]

LOG_FILE = "train_log.jsonl"

# What the recipe notes of a training beside what was asked for.
NOTED = ("objective", "parameters", "tokens", "devices", "loss_before", "loss_after")
LIBRARIES = ("torch", "transformers", "accelerate")
WORDS = {
    "causal": "to tell each next token",
    "masked": "to tell masked tokens",
    "distilled": "to give, on long texts, the states that the original gives on windows it can read",
}
LOG_POINTER = f" `{LOG_FILE}` holds the losses on the way."
# Takes the place of what the card said of the resize alone.
BEFORE = "Before it was trained:"
WHAT = {"new": "the new rows of its position table", "positions": "its position table", "all": "all of its weights"}


def output_texts(asked: Recipe, opened: Opened, result: TrainResult, hashes: tuple[str, str]) -> dict[str, bytes]:
    """Return the text files that a trained checkpoint gets, whole, by their names.

    Args:
        asked: What was asked for, with all that was left open filled in.
        opened: What was trained.
        result: What came of it.
        hashes: The SHA-256 of the position table before and after.
    """
    log = "".join(f"{json.dumps(line)}\n" for line in result.log)
    texts = {RECIPE_FILE: _recipe(asked, opened, result, hashes), CARD_FILE: _card(opened, result), LOG_FILE: log}
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def _recipe(asked: Recipe, opened: Opened, result: TrainResult, hashes: tuple[str, str]) -> str:
    """Return the recipe: what resized the checkpoint stands in it as the resize itself wrote it."""
    before = _source_recipe(opened)
    trained = {name: getattr(result, name) for name in NOTED}
    if opened.begun_for is not None:
        trained["begun_for"] = opened.begun_for
    trained["versions"] = {name: version(name) for name in LIBRARIES}
    if asked.resize is None:
        return recipe_text(asked, _provenance(opened, hashes, before) | {"trained": trained})
    provenance = before.pop("provenance")
    for table in provenance["tables"]:
        table["sha256_after"] = hashes[1] if table["name"] == opened.files.table else table["sha256_after"]
    values = recipe_values(asked)
    steps = {name: values[name] for name in ("train", "evaluate") if name in values}
    return yaml_text(before | steps | {"provenance": provenance | {"trained": trained}})


def _source_recipe(opened: Opened) -> dict[str, Any]:
    """Return the recipe that lies beside what was trained, as plain values; empty where there is none of ours."""
    try:
        found = read_provenance(opened.files.checkpoint)
    except RecipeError:
        return {}
    return {} if found is None else dict(found.values)


def _provenance(opened: Opened, hashes: tuple[str, str], before: Mapping[str, Any]) -> dict[str, Any]:
    files, source = opened.files, opened.files.checkpoint.source
    table = {"name": files.table, "rows_before": files.rows, "rows_after": files.rows}
    return {
        "family": files.place.family.model_type,
        "max_len": files.max_len,
        "revision": source.revision,
        "tables": [table | {"sha256_before": hashes[0], "sha256_after": hashes[1]}],
        "versions": {"ctxextend": __version__},
        **({"source_recipe": dict(before)} if before else {}),
    }


def _card(opened: Opened, result: TrainResult) -> str:
    checkpoint = opened.files.checkpoint
    has_card = CARD_FILE in checkpoint.copied
    card = read_bytes(checkpoint.root / CARD_FILE).decode("utf-8", UNDECODED) if has_card else None
    name = printable(result.source)
    return model_card(
        card and _outdated(card).replace(UNTRAINED.format(opened.files.max_len), BEFORE),
        name,
        is_hub_id=checkpoint.source.hub_id is not None,
        title=printable(result.output.name),
        section=_section(opened, result),
    )


def _outdated(card: str) -> str:
    """Return a card without what it says of files that now hold something else."""
    return card.replace(RECIPE_POINTER, "").replace(LOG_POINTER, "")


def _section(opened: Opened, result: TrainResult) -> str:
    data = ", ".join(f"`{printable(path)}`" for path in opened.settings.data)
    at_places = f", each at a place of its own among {result.seq_len:,} positions" * (result.window < result.seq_len)
    taken = f"{counted(result.steps, 'step')} of {counted(result.batch_size, 'sequence')}"
    return (
        f"## Trained at {result.seq_len}\n\n"
        f"Trained by ctxextend {__version__} {WORDS[result.objective]}: {WHAT[result.trainable]} "
        f"({result.parameters:,} numbers), {taken} of {result.window:,} tokens{at_places}, on {data}; learning rate up "
        f"to {result.lr:.3g}. Held-out loss: {result.loss_before:.4f} before, {result.loss_after:.4f} after."
        f"{LOG_POINTER}{RECIPE_POINTER}\n"
    )
