"""Notes on what engines do with an output."""

from collections.abc import Iterator, Sequence

from ctxextend.errors import joined
from ctxextend.notes import Code, Level, Note
from ctxextend.runtimes.rule_schema import RuntimeOutcome, RuntimeStatement


def engine_notes(
    statements: Sequence[RuntimeStatement], max_len: int, *, can_add_keys: bool = False
) -> Iterator[Note]:
    """Yield which engines read the context length as the output is, and whose outputs differ.

    Those that fail or read less are named only if one is requested.

    Args:
        statements: What engines do with the output, by a rule.
        max_len: The context length, in tokens.
        can_add_keys: As in `difference_notes`.
    """
    names = list[str]()
    for item in statements:
        if item.outcome is RuntimeOutcome.SERVES:
            names.append(item.name)
    if names:
        yield Note(Code.ENGINE, Level.NOTE, f"Reads {max_len} tokens in {', '.join(names)}.")
    yield from difference_notes(statements, can_add_keys=can_add_keys)


def difference_notes(
    statements: Sequence[RuntimeStatement], *, can_add_keys: bool = False
) -> Iterator[Note]:
    """Yield a warning for engines that read the length, but not all of the settings.

    Args:
        statements: What engines do with the output, by a rule.
        can_add_keys: Whether ``--for`` states the attention factor by other keys, for engines that
            read these.
    """
    right = [item for item in statements if item.serves_with_option]
    ignoring = [item for item in right if item.ignores_attention_factor]
    names = [item.name for item in ignoring]
    if names:
        ignores = "ignores" if len(names) == 1 else "ignore"
        text = (
            f"The settings state an attention_factor, which {joined(names)} {ignores}: outputs "
            "differ from those of transformers."
        )
        readers = [item for item in ignoring if item.runtime.reads_list_mscales]
        if can_add_keys and readers:
            keys = " or ".join(item.runtime.key for item in readers)
            text += f" --for {keys} states it as that engine reads it."
        yield Note(Code.ENGINE, Level.WARNING, text)
    names = [item.name for item in right if item.ignores_short_list]
    if names:
        gives = "gives" if len(names) == 1 else "give"
        text = (
            f"{joined(names)} {gives} every input the frequencies of long ones, so the outputs for "
            "short inputs change there."
        )
        yield Note(Code.ENGINE, Level.WARNING, text)
