"""What runtimes do with a folder, in words."""

from collections.abc import Iterable, Iterator, Sequence

from ctxextend.errors import joined
from ctxextend.runtimes.schema import Outcome, RuntimeStatement


def describe_statements(statements: Sequence[RuntimeStatement], max_len: int) -> tuple[str, ...]:
    """Return which runtimes read the requested context length, and what the others do.

    Args:
        statements: Those of one folder.
        max_len: The requested context length, in tokens.
    """
    by_outcome = {outcome: list[RuntimeStatement]() for outcome in Outcome}
    for statement in statements:
        by_outcome[statement.outcome].append(statement)
    sentences = list[str]()
    sentences += _describe_lengths(by_outcome, max_len)
    sentences += _describe_each(
        "Loads, but without the new positions, in", by_outcome[Outcome.IGNORES]
    )
    sentences += _describe_each("Does not load in", by_outcome[Outcome.REFUSES])
    return tuple(sentences)


def describe_ignored_factor(statements: Iterable[RuntimeStatement]) -> Iterator[str]:
    """Yield a warning about runtimes that ignore an attention factor that a folder states."""
    names = list[str]()
    for statement in statements:
        if statement.runtime.ignores_attention_factor and statement.serves_with_option:
            names.append(statement.name)
    if names:
        ignores = "ignores" if len(names) == 1 else "ignore"
        yield (
            f"The settings state an attention_factor, which {joined(names)} {ignores}: outputs "
            "differ from those of transformers."
        )


def _describe_lengths(
    by_outcome: dict[Outcome, list[RuntimeStatement]], max_len: int
) -> Iterator[str]:
    """Yield which runtimes read the requested length, and which derive another one."""
    serving = [statement.name for statement in by_outcome[Outcome.SERVES]]
    if serving:
        yield f"Context length {max_len} in {', '.join(serving)}."
    for statement in by_outcome[Outcome.DERIVES]:
        sentence = f"{statement.name} takes {statement.length} for the context length"
        if statement.option:
            sentence += f": add {statement.option}"
        yield f"{sentence}."


def _describe_each(effect: str, statements: Sequence[RuntimeStatement]) -> Iterator[str]:
    """Yield a sentence for the runtimes that share an effect, a reason and an option."""
    groups = dict[tuple[str, str], list[str]]()
    for statement in statements:
        groups.setdefault((statement.reason, statement.option), []).append(statement.name)
    for (reason, option), names in groups.items():
        sentence = f"{effect} {joined(names)}"
        if reason:
            sentence += f": {reason}"
        if option:
            sentence += f"; add {option}"
        yield f"{sentence}."
