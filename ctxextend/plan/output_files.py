"""The model card and weights index of an output, and warnings about code and links in its
folder.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import yaml

from ctxextend.checkpoints.filenames import is_code
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import delete, edit, load_object, read_bytes
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.checkpoints.source import OUTSIDE, dereference_hint, is_hub_id
from ctxextend.errors import CheckpointError
from ctxextend.recipe import RECIPE_FILE
from ctxextend.recipe_file import read_provenance

CARD_FILE = "README.md"
RECIPE_POINTER = f" The recipe is in `{RECIPE_FILE}`."
UNTRAINED = "Not yet trained at {}."  # replaced in the card after training
UNDECODED = "surrogateescape"  # keeps bytes that are not UTF-8

# As in huggingface_hub: whitespace and a byte order mark may precede it.
FRONT_MATTER = re.compile(
    r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE
)
MAX_FRONT_MATTER = 100_000  # characters; longer front matter is slow to parse and is not edited
# Keys that a new base model replaces, with the indented lines and list items of their values.
BASE_MODEL = re.compile(
    r"^base_model(?:_relation)?:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE
)

# A local path, as trainers write it.
LOCAL_BASE = re.compile(r"^base_model:[ \t]*(?:\r?\n[ \t]*-[ \t]*)?['\"]?[/~.]", re.MULTILINE)

# Files whose auto_map names code that transformers runs with trust_remote_code=True.
AUTO_MAP_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
MAX_NAMES = 5


def index_text(
    source: Checkpoint, layouts: Mapping[str, Layout], dropped: Collection[str] = (), added: int = 0
) -> str:
    """Return the shard index with updated totals and without `dropped` tensors; `added` parameters
    are new.
    """
    text, metadata = (
        source.text(source.weights.index_file),
        (source.weights.index or {}).get("metadata"),
    )
    if isinstance(metadata, Mapping):
        sizes = {name: file.tensor_bytes for name, file in source.weights.files.items()}
        sizes |= {name: layout.tensor_bytes for name, layout in layouts.items()}
        totals = {"total_size": sum(sizes.values())}
        if isinstance(metadata.get("total_parameters"), int | float):
            totals["total_parameters"] = metadata["total_parameters"] + added
        text = edit(
            text, {("metadata", key): value for key, value in totals.items() if key in metadata}
        )
    return delete(text, ("weight_map",), dropped)


def read_card(checkpoint: Checkpoint) -> str | None:
    """Return a checkpoint's model card without the sentence about its recipe; None if it has no
    card.
    """
    if CARD_FILE not in checkpoint.copied:
        return None
    return (
        read_bytes(checkpoint.root / CARD_FILE)
        .decode("utf-8", UNDECODED)
        .replace(RECIPE_POINTER, "")
    )


def known_base_model(checkpoint: Checkpoint) -> str | None:
    """Return the Hub id of a checkpoint, or of the nearest Hub model in its chain of recipes; None
    if unknown.
    """
    provenance = read_provenance(checkpoint)
    # Only Hub models have a revision in recipes.
    bases = (
        step.base.source for step in (provenance.chain if provenance else ()) if step.base.revision
    )
    return checkpoint.source.hub_id or next(filter(is_hub_id, bases), None)


def model_card(
    card: str | None, base_model: str | None, *, is_adapter: bool = False, title: str, section: str
) -> str:
    """Return the source's model card, or a new one with this title, with a Markdown section
    appended.

    `base_model`, a Hub id, replaces the one in the front matter; None keeps that one unless it is a
    local path. `base_model_relation` is added if it is missing.
    """
    card = f"# {title}\n" if card is None else card
    newline = "\r\n" if "\r\n" in card else "\n"
    match = FRONT_MATTER.match(card)
    stated = match["yaml"] if match else ""
    added = {"base_model_relation": "adapter" if is_adapter else "finetune"}
    front = (
        BASE_MODEL.sub("", stated)
        if base_model is not None or LOCAL_BASE.search(stated)
        else stated
    )
    if base_model is not None or (
        "base_model" in (keys := _keys(front)) and "base_model_relation" not in keys
    ):
        front += yaml.safe_dump(({"base_model": base_model} if base_model else {}) | added).replace(
            "\n", newline
        )
    if front != stated and (
        _keys(front) or not front.strip()
    ):  # do not edit flow style or invalid YAML
        ends = match.span("yaml") if match else None
        card = (
            card[: ends[0]] + front + card[ends[1] :]
            if ends
            else f"---{newline}{front}---{newline}{card}"
        )
    return card.rstrip() + 2 * newline + section.strip().replace("\n", newline) + newline


def _keys(text: str) -> list[str]:
    """Return the keys of a YAML mapping without constructing its untrusted values; empty for
    anything else.
    """
    try:
        node = yaml.compose(text) if len(text) <= MAX_FRONT_MATTER else None
    except (yaml.YAMLError, RecursionError):
        return []
    return [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def file_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a warning for links that leave the folder, for code files, and for auto_map entries."""
    if outside := [name for name, reason in checkpoint.omitted.items() if reason == OUTSIDE]:
        kind = "symlinks that point" if len(outside) > 1 else "a symlink that points"
        yield (
            f"Not copied: {_listed(outside)}, {kind} outside the folder. "
            f"{dereference_hint(checkpoint.root)}"
        )
    if copied := [name for name in checkpoint.copied if is_code(PurePosixPath(name))]:
        yield f"Code files are copied, but not executed: {_listed(copied)}."
    if checkpoint.code:
        yield (
            f"Code files are neither executed nor copied: {_listed(checkpoint.code)}. Copy them "
            "with --copy-code."
        )
    if classes := list(dict.fromkeys(_auto_map_classes(checkpoint))):
        runs = "Loading the output with trust_remote_code=True runs it, wherever it is."
        yield f"auto_map in the output's config files refers to code: {_listed(classes)}. {runs}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _auto_map_classes(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the classes in auto_map, such as ``modeling_x.XModel`` or
    ``owner/repo--modeling_x.XModel``.
    """
    for name in checkpoint.copied:
        if PurePosixPath(name).name not in AUTO_MAP_FILES:
            continue
        try:
            auto_map = load_object(checkpoint.root / name).get("auto_map")
        except CheckpointError:  # reported when the file is edited
            continue
        for value in auto_map.values() if isinstance(auto_map, Mapping) else ():
            yield from (
                item
                for item in (value if isinstance(value, list) else [value])
                if isinstance(item, str)
            )
