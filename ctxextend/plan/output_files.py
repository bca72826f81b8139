"""What lies beside the weights of any output: its model card, and warnings about code and links in its folder."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import yaml

from ctxextend.checkpoints.filenames import is_code
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import delete, edit, load_object, read_bytes
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.checkpoints.source import HUB_ID, OUTSIDE, as_copied
from ctxextend.errors import CheckpointError
from ctxextend.recipe import RECIPE_FILE
from ctxextend.recipe_file import read_provenance

CARD_FILE = "README.md"
RECIPE_POINTER = f" `{RECIPE_FILE}` holds the recipe."
# What a card says before it tells what a new length is worth without training.
UNTRAINED = "It has not been trained at {}:"
UNDECODED = "surrogateescape"  # how bytes that are no UTF-8 live through a text

# Where the Hub's own reader finds it: white space and a byte order mark may stand before it.
FRONT_MATTER = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
MAX_FRONT_MATTER = 100_000  # longer and deeper front matter takes long to read, and is left as it is
# The two keys and whatever is indented below them or listed at their own level.
BASE_MODEL = re.compile(r"^base_model(?:_relation)?:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE)

# A folder of the author's, as trainers write it.
LOCAL_BASE = re.compile(r"^base_model:[ \t]*(?:\r?\n[ \t]*-[ \t]*)?['\"]?[/~.]", re.MULTILINE)

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


def known_base_model(checkpoint: Checkpoint) -> str | None:
    """Return the Hub id of a checkpoint, or of the last one in the recipes that led to it; None where none is known."""
    written = read_provenance(checkpoint)
    # Recipes state a commit for models of the Hub alone.
    bases = (one.base.source for one in (written.chain if written else ()) if one.base.revision)
    return checkpoint.source.hub_id or next(filter(HUB_ID.fullmatch, bases), None)


def model_card(card: str | None, base_model: str | None, *, is_adapter: bool = False, title: str, section: str) -> str:
    """Return the source's card, or one of this title, with a section of Markdown added at its end.

    `base_model`, a Hub id, replaces the one that its front matter states; None leaves that, unless it is a local path.
    The relation to it is added where it is not stated.
    """
    card = f"# {title}\n" if card is None else card
    newline = "\r\n" if "\r\n" in card else "\n"
    found = FRONT_MATTER.match(card)
    stated, added = found["yaml"] if found else "", {"base_model_relation": "adapter" if is_adapter else "finetune"}
    front = BASE_MODEL.sub("", stated) if base_model is not None or LOCAL_BASE.search(stated) else stated
    if base_model is not None or ("base_model" in (keys := _keys(front)) and "base_model_relation" not in keys):
        front += yaml.safe_dump(({"base_model": base_model} if base_model else {}) | added).replace("\n", newline)
    if front != stated and (_keys(front) or not front.strip()):  # flow style, or no YAML at all, is the author's to fix
        ends = found.span("yaml") if found else None
        card = card[: ends[0]] + front + card[ends[1] :] if ends else f"---{newline}{front}---{newline}{card}"
    return card.rstrip() + 2 * newline + section.strip().replace("\n", newline) + newline


def _keys(text: str) -> list[str]:
    """Return the keys of a YAML mapping, without building its values: a stranger wrote them; none of all else."""
    try:
        node = yaml.compose(text) if len(text) <= MAX_FRONT_MATTER else None
    except (yaml.YAMLError, RecursionError):
        return []
    return [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def file_warnings(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a sentence for links that lead out of a folder, for code in it, and for what names code."""
    if outside := [name for name, reason in checkpoint.omitted.items() if reason == OUTSIDE]:
        are = "are links that lead" if len(outside) > 1 else "is a link that leads"
        yield f"{_listed(outside)} {are} out of the folder, and left out. {as_copied(checkpoint.root)}"
    if copied := [name for name in checkpoint.copied if is_code(PurePosixPath(name))]:
        yield f"The folder holds code, which was not run and is copied: {_listed(copied)}."
    if checkpoint.code:
        left_out = f"is left out: {_listed(checkpoint.code)}. Keep it with --copy-code."
        yield f"The folder holds code, which was not run and {left_out}"
    if mapped := list(dict.fromkeys(_mapped(checkpoint))):
        runs = "whoever loads the output with trust_remote_code=True runs it, wherever it lies."
        yield f"The configs' auto_map still names code, {_listed(mapped)}: {runs}"


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
