"""What lies beside the weights of any output: its model card, and warnings about code and links in its folder."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import yaml

from ctxextend.checkpoints.filenames import is_code
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import delete, edit, load_object, read_bytes
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.checkpoints.source import OUTSIDE, as_copied
from ctxextend.errors import CheckpointError
from ctxextend.recipe import RECIPE_FILE

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


def index_text(
    checkpoint: Checkpoint, layouts: Mapping[str, Layout], dropped: Collection[str] = (), added: int = 0
) -> str:
    """Return the index of shards without dropped tensors, its totals those of the output; `added` numbers are new."""
    text, metadata = checkpoint.text(checkpoint.index_file), (checkpoint.index or {}).get("metadata")
    if isinstance(metadata, Mapping):
        sizes = {name: file.tensor_bytes for name, file in checkpoint.weights.items()}
        sizes |= {name: layout.tensor_bytes for name, layout in layouts.items()}
        totals = {"total_size": sum(sizes.values())}
        if isinstance(metadata.get("total_parameters"), int | float):
            totals["total_parameters"] = metadata["total_parameters"] + added
        text = edit(text, {("metadata", key): value for key, value in totals.items() if key in metadata})
    return delete(text, ("weight_map",), dropped)


def read_card(checkpoint: Checkpoint) -> str | None:
    """Return a checkpoint's own card but for its pointer to a recipe; None where it has none."""
    if CARD_FILE not in checkpoint.copied:
        return None
    return read_bytes(checkpoint.root / CARD_FILE).decode("utf-8", UNDECODED).replace(RECIPE_POINTER, "")


def model_card(card: str | None, base_model: str, *, is_hub_id: bool, title: str, section: str) -> str:
    """Return a card with `base_model` in its front matter and a section of Markdown added at its end.

    Without a card, a new one gets the title. A folder's name does not replace the `base_model` that a card states.
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
            "--copy-code."
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
