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
        *describe_ignored_lists(statements),
        *_failing(RuntimeOutcome.IGNORES, "Loads, but without the new settings, in", statements),
        *_failing(RuntimeOutcome.DIFFERS, "Loads, but computes other positions, in", statements),
        *_failing(RuntimeOutcome.REFUSES, "Does not load in", statements),
    )


def describe_ignored_factor(
    statements: Iterable[RuntimeStatement], *, can_add_keys: bool = False
) -> Iterator[str]:
    """Yield a warning about runtimes that ignore an attention factor that a folder states.

    Args:
        statements: Those of the folder.
        can_add_keys: Whether ``--for`` states the factor by other keys for runtimes that read
            these: next to lists of factors, if the keys are not stated yet.
    """
    ignoring = list[RuntimeStatement]()
    for statement in statements:
        if statement.ignores_attention_factor and statement.serves_with_option:
            ignoring.append(statement)
    if not ignoring:
        return
    ignores = "ignores" if len(ignoring) == 1 else "ignore"
    warning = (
        f"The settings state an attention_factor, which {_names(ignoring)} {ignores}: outputs "
        "differ from those of transformers."
    )
    readers = [item for item in ignoring if item.runtime.reads_list_mscales]
    if can_add_keys and readers:
        reads = "reads" if len(readers) == 1 else "read"
        key = readers[0].runtime.key
        warning += f" --for {key} also states it as {_names(readers)} {reads} it."
    yield warning


def describe_ignored_lists(statements: Iterable[RuntimeStatement]) -> Iterator[str]:
    """Yield which runtimes give short inputs the frequencies of long ones."""
    names = [item.name for item in statements if item.ignores_short_list]
    if names:
        gives = "gives" if len(names) == 1 else "give"
        yield (
            f"{joined(names)} {gives} every input the frequencies of long ones, so the outputs for "
            "short inputs change there."
        )


def _names(statements: Iterable[RuntimeStatement]) -> str:
    """Return the names of runtimes, in words."""
    return joined([item.name for item in statements])


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


def _failing(
    outcome: RuntimeOutcome, effect: str, statements: Sequence[RuntimeStatement]
) -> Iterator[str]:
    """Yield a sentence for the runtimes that share an outcome, a reason and an option."""
    groups = dict[tuple[str, str], list[str]]()
    for item in statements:
        if item.outcome is outcome:
            groups.setdefault((item.reason, _remedy(item)), []).append(item.name)
    for (reason, remedy), names in groups.items():
        causes = [text for text in (reason, remedy) if text]
        sentence = f"{effect} {joined(names)}"
        if causes:
            sentence += f": {'; '.join(causes)}"
        yield f"{sentence}."


def _remedy(statement: RuntimeStatement) -> str:
    """Return which option of a runtime makes its positions right, as a clause or nothing."""
    if not statement.option:
        return ""
    if statement.ignores_attention_factor:
        return f"{statement.option} makes all right but the attention factor"
    return f"{statement.option} makes it right"
