"""The model card of an output: the source's own, with a base_model and a section on the resize."""

import re

__all__ = ["model_card"]

FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# The key and whatever is indented below it or listed at its own level.
BASE_MODEL = re.compile(r"^base_model:.*\r?\n(?:[ \t]+.*\r?\n|-[ \t].*\r?\n)*", re.MULTILINE)


def model_card(card: str | None, base_model: str | None, title: str, section: str) -> str:
    """Return a card with `base_model` in its front matter and a section added at its end.

    Args:
        card: The source's card; None where it has none.
        base_model: The model that this one was made from; None keeps what the card says.
        title: The heading of a new card.
        section: Markdown, from its heading on.
    """
    card = f"# {title}\n" if card is None else card
    if base_model is not None:
        card = _with_base_model(card, f"base_model: {base_model}\n")
    return f"{card.rstrip()}\n\n{section.strip()}\n"


def _with_base_model(card: str, line: str) -> str:
    found = FRONT_MATTER.match(card)
    if found is None:
        return f"---\n{line}---\n{card}"
    yaml = BASE_MODEL.sub("", found["yaml"])
    if yaml and not yaml.endswith("\n"):
        yaml += "\n"
    return card[: found.start("yaml")] + yaml + line + card[found.end("yaml") :]
