"""The model card of an output: the source's card with a section about what changed."""

import re
from collections.abc import Sequence

import yaml

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.json_edit import read_text
from ctxextend.checkpoint.source import is_hub_id
from ctxextend.errors import printable
from ctxextend.notes import Code, Note
from ctxextend.plan import Plan
from ctxextend.plan_notes import NOT_TRAINED, old_lengths
from ctxextend.provenance import Provenance
from ctxextend.settings import SCHEMES
from ctxextend.version import __version__

CARD_FILE = "README.md"
LOG_FILE = "train_log.jsonl"
# Sentences of a card that are true of the output for which they were written, but not of one that
# is created from it; `NOT_TRAINED` is another. They are part of the format of cards: a later step
# finds them as they are, and no other text of a card is read. So they must not change.
RECIPE_POINTER = f" The recipe is in `{RECIPE_FILE}`."
LOG_POINTER = f" `{LOG_FILE}` contains the training and held-out losses."
BEFORE_TRAINING = "Before training:"  # replaces `NOT_TRAINED` after training
# The notes whose texts a card has: what holds for whoever loads the output.
CARD_CODES = (
    Code.UNTRAINED,
    Code.SHORT_INPUTS,
    Code.FAR,
    Code.LIMITS,
    Code.PADDING,
    Code.ATTENTION_WINDOW,
    Code.TENSORS,
)
UNDECODED = "surrogateescape"  # keeps bytes that are not UTF-8

# As in huggingface_hub: whitespace and a byte order mark may precede it.
FRONT_MATTER = re.compile(
    r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE
)
MAX_FRONT_MATTER = 100_000  # characters; longer front matter is slow to parse and is not edited
# Keys that a new base model replaces, with the indented lines and list items of their values.
BASE_MODEL_KEY = re.compile(
    r"^base_model(?:_relation)?:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE
)
# A local path, as trainers write it.
LOCAL_BASE = re.compile(r"^base_model:[ \t]*(?:\r?\n[ \t]*-[ \t]*)?['\"]?[/~.]", re.MULTILINE)


def output_card(plan: Plan, notes: Sequence[Note], earlier: Provenance | None) -> str:
    """Return the model card of an output.

    Args:
        plan: What changes.
        notes: What to know of the output.
        earlier: How the source was created, if its recipe says so.

    Raises:
        CheckpointError: The source's card cannot be read.
    """
    source = plan.checkpoint.source
    after = plan.max_len_after
    names = ", ".join(f"`{change.name}`" for change in plan.changes)
    what = f"kept at {after} positions"
    if plan.is_changed:
        what = f"resized from {old_lengths(plan)} to {after} positions with method `{plan.method}`"
    unchanged = "All weights are the same: only config and tokenizer files"
    if plan.stored:
        unchanged = "No other weights"
    name = printable(source.hub_id or source.name)
    heading = f"Context length {after}"
    sentences = [
        f"{name} with its positions ({names}) {what} by ctxextend {__version__}.",
        f"{unchanged} were changed.",
    ]
    if plan.convert is not None:
        heading = f"Converted to {SCHEMES[plan.convert.scheme]}, {after} tokens"
        sentences = [
            f"{name} converted to {plan.model_type} with {plan.convert.result}, from "
            f"{plan.max_len_before} to {after} tokens, by ctxextend {__version__}.",
            "`ctxextend verify` recomputes every tensor from those of the source.",
        ]
    sentences += [note.text for note in notes if note.code in CARD_CODES]
    return extended_card(
        plan.checkpoint,
        earlier,
        is_adapter=plan.checkpoint.adapter_of is not None,
        title=printable(plan.output_name),
        section=f"## {heading}\n\n{' '.join(sentences)}{RECIPE_POINTER}\n",
    )


def extended_card(
    checkpoint: Checkpoint,
    provenance: Provenance | None,
    *,
    title: str,
    section: str,
    is_adapter: bool = False,
    trained_at: int | None = None,
) -> str:
    """Return a checkpoint's model card with a section appended, for an output.

    Statements about the checkpoint that are not true of the output are removed.

    Args:
        checkpoint: The source, which may have no card.
        provenance: How it was created, if its recipe says so.
        title: Title of a new card.
        section: The section, as Markdown.
        is_adapter: Whether the output is an adapter.
        trained_at: The length at which the output was trained; None if it was not.

    Raises:
        CheckpointError: The card cannot be read.
    """
    card = None
    if CARD_FILE in checkpoint.copied:
        card = read_text(checkpoint.root / CARD_FILE, UNDECODED).replace(RECIPE_POINTER, "")
    if card is not None and trained_at is not None:
        card = card.replace(LOG_POINTER, "")
        card = card.replace(NOT_TRAINED.format(trained_at), BEFORE_TRAINING)
    # The checkpoint, or the nearest Hub model that its recipe names.
    base_model = checkpoint.source.hub_id
    for step in provenance.steps[::-1] if provenance is not None else ():
        # Only Hub models have a revision in recipes.
        if base_model is None and step.source.revision and is_hub_id(step.source.source):
            base_model = step.source.source
    return model_card(card, base_model, is_adapter=is_adapter, title=title, section=section)


def model_card(
    card: str | None,
    base_model: str | None,
    *,
    is_adapter: bool = False,
    title: str,
    section: str,
) -> str:
    """Return a model card with a Markdown section appended.

    Args:
        card: The source's card; None for a new one.
        base_model: A Hub id, which replaces the one in the front matter. None keeps that one
            unless it is a local path.
        is_adapter: Whether the output is an adapter; ``base_model_relation`` says so if the front
            matter does not.
        title: Title of a new card.
        section: The section.
    """
    text = f"# {title}\n" if card is None else card
    newline = "\r\n" if "\r\n" in text else "\n"
    match = FRONT_MATTER.match(text)
    stated = match["yaml"] if match else ""
    front = stated
    if base_model is not None or LOCAL_BASE.search(stated):
        front = BASE_MODEL_KEY.sub("", stated)
    keys = _keys(front)
    lacks_relation = "base_model" in keys and "base_model_relation" not in keys
    added = dict[str, str]()
    if base_model is not None:
        added["base_model"] = base_model
    if base_model is not None or lacks_relation:
        added["base_model_relation"] = "adapter" if is_adapter else "finetune"
    if added:
        front += yaml.safe_dump(added).replace("\n", newline)
    # Flow style and invalid YAML are not edited.
    is_editable = bool(_keys(front)) or not front.strip()
    if front != stated and is_editable:
        if match:
            start, end = match.span("yaml")
            text = text[:start] + front + text[end:]
        else:
            text = f"---{newline}{front}---{newline}{text}"
    return text.rstrip() + 2 * newline + section.strip().replace("\n", newline) + newline


def _keys(text: str) -> list[str]:
    # Of a YAML mapping; untrusted values are not constructed.
    if len(text) > MAX_FRONT_MATTER:
        return []
    try:
        node = yaml.compose(text)
    except (yaml.YAMLError, RecursionError):
        return []
    if not isinstance(node, yaml.MappingNode):
        return []
    return [str(key.value) for key, _ in node.value]
