"""The model card of an output: the source's own, with a base_model and a section on the resize."""

import re

import yaml

from ctxextend.checkpoints.json_edit import open_brackets

__all__ = ["model_card"]

# Where the Hub's own reader finds it: white space and a byte order mark may stand before it.
FRONT_MATTER = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# Reading more would take long; such front matter is left as it is.
MOST_CHARACTERS = 100_000
DEEPEST = 100
# The key and whatever is indented below it or listed at its own level.
BASE_MODEL = re.compile(r"^base_model:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE)


def model_card(card: str | None, base_model: str, *, is_hub_id: bool, title: str, section: str) -> str:
    """Return a card with `base_model` in its front matter and a section added at its end.

    Args:
        card: The source's card; None where it has none.
        base_model: The model that this one was made from.
        is_hub_id: Whether that is its name on the Hub; a folder's name does not replace what the card says.
        title: The heading of a new card.
        section: Markdown, from its heading on.
    """
    if card is None:
        card = f"# {title}\n"
    newline = "\r\n" if "\r\n" in card else "\n"
    line = yaml.safe_dump({"base_model": base_model}, allow_unicode=True, width=1000)
    card = _with_base_model(card, line.replace("\n", newline), replace=is_hub_id)
    return card.rstrip() + 2 * newline + section.strip().replace("\n", newline) + newline


def _with_base_model(card: str, line: str, replace: bool) -> str:
    found = FRONT_MATTER.match(card)
    if found is None:
        fence = "---" + line[len(line.rstrip("\r\n")) :]
        return fence + line + fence + card
    old = found["yaml"]
    if not replace and BASE_MODEL.search(old):
        return card
    new = BASE_MODEL.sub("", old) + line
    if not _is_mapping(new):  # flow style, or no YAML at all: then it is the author's to mend
        return card
    return card[: found.start("yaml")] + new + card[found.end("yaml") :]


def _is_mapping(text: str) -> bool:
    """Whether YAML is a mapping, seen without building its values: a stranger wrote them."""
    if len(text) > MOST_CHARACTERS or open_brackets(text) > DEEPEST:
        return False
    try:
        return isinstance(yaml.compose(text), yaml.MappingNode)
    except (yaml.YAMLError, RecursionError):
        return False
