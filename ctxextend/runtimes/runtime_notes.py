"""What runtimes do with a folder, in words."""

from collections.abc import Iterable, Iterator, Sequence

from ctxextend.errors import joined
from ctxextend.runtimes.rule_schema import RuntimeOutcome, RuntimeStatement


def describe_statements(statements: Sequence[RuntimeStatement], max_len: int) -> tuple[str, ...]:
    """Return which runtimes read the requested context length, and what the others do.

    Args:
        statements: Those of one folder.
        max_len: The requested context length, in tokens.
    """
    return (
        *_serving(statements, max_len),
        *_deriving(statements),
        *_ignoring_short_lists(statements),
        *_failing(RuntimeOutcome.IGNORES, "Loads, but without the new settings, in", statements),
        *_failing(RuntimeOutcome.DIFFERS, "Loads, but computes other positions, in", statements),
        *_failing(RuntimeOutcome.REFUSES, "Does not load in", statements),
    )


def describe_ignored_factor(statements: Iterable[RuntimeStatement]) -> Iterator[str]:
    """Yield a warning about runtimes that ignore an attention factor that a folder states."""
    names = list[str]()
    for statement in statements:
        if statement.ignores_attention_factor and statement.serves_with_option:
            names.append(statement.name)
    if names:
        ignores = "ignores" if len(names) == 1 else "ignore"
        yield (
            f"The settings state an attention_factor, which {joined(names)} {ignores}: outputs "
            "differ from those of transformers."
        )


def _serving(statements: Sequence[RuntimeStatement], max_len: int) -> Iterator[str]:
    """Yield which runtimes read the requested length as the folder is."""
    names = [item.name for item in statements if item.outcome is RuntimeOutcome.SERVES]
    if names:
        yield f"Context length {max_len} in {', '.join(names)}."


def _deriving(statements: Sequence[RuntimeStatement]) -> Iterator[str]:
    """Yield which runtimes read another length, and their option to change it."""
    for item in statements:
        if item.outcome is not RuntimeOutcome.DERIVES:
            continue
        sentence = f"{item.name} takes {item.length} for the context length"
        if item.option:
            sentence += f": add {item.option}"
        yield f"{sentence}."


def _ignoring_short_lists(statements: Sequence[RuntimeStatement]) -> Iterator[str]:
    """Yield which runtimes give short inputs the frequencies of long ones."""
    names = [item.name for item in statements if item.ignores_short_list]
    if names:
        gives = "gives" if len(names) == 1 else "give"
        yield (
            f"{joined(names)} {gives} every input the frequencies of long ones, so the outputs for "
            "short inputs change there."
        )


def _failing(
    outcome: RuntimeOutcome, effect: str, statements: Sequence[RuntimeStatement]
) -> Iterator[str]:
    """Yield a sentence for the runtimes that share an outcome, a reason and an option."""
    groups = dict[tuple[str, str], list[str]]()
    for item in statements:
        if item.outcome is outcome:
            groups.setdefault((item.reason, item.option), []).append(item.name)
    for (reason, option), names in groups.items():
        sentence = f"{effect} {joined(names)}"
        if reason:
            sentence += f": {reason}"
        if option:
            sentence += f"; {option} makes it right" if reason else f": {option} makes it right"
        yield f"{sentence}."
