"""What a method and its settings must satisfy for a table."""

from ctxextend.errors import ResizeError
from ctxextend.tables.bands import MIN_ROWS
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import TRUNCATE

CHOOSE_ANOTHER = "Choose another method; list them with `ctxextend methods`."


def check_source_rows(learned: int, rows: int, choice: MethodChoice) -> None:
    """Raise ResizeError if a method cannot extend a table of `learned` rows to `rows`."""
    if choice.name == TRUNCATE:
        message = (
            f"--method {TRUNCATE} creates no new rows, and {rows} positions are more than the "
            f"{learned} learned ones."
        )
        raise ResizeError(message, CHOOSE_ANOTHER)
    first = choice.first_source_row
    if choice.keeps_learned_rows and first >= learned:
        message = f"--keep-first {first}: {choice.name} keeps all {learned} already."
        raise ResizeError(message, "Remove --keep-first.")
    if learned <= first:
        message = (
            f"--keep-first {first} with --method {choice.name}: none of the {learned} learned "
            "positions is left as a source."
        )
        raise ResizeError(message, f"Use --keep-first {learned // 2}.")
    if choice.name == "bands":
        _check_bands(learned, choice)
    if choice.facts.max_rows is None:
        return
    source = learned - first
    most = choice.facts.max_rows(source)
    if rows - first > most:
        message = f"--method {choice.name} extends {source} learned positions to at most {most}"
        hint = "Use another method."
        if first + most > learned:
            hint = f"Use --to {first + most} or fewer, or another method."
        raise ResizeError(f"{message}, not to {rows}.", hint)


def _check_bands(learned: int, choice: MethodChoice) -> None:
    """Raise ResizeError if a setting of ``bands`` needs more source rows."""
    for key in ("sigma", "repeat"):
        if choice.settings[key] and learned < MIN_ROWS:
            message = (
                f"--method {choice.text}: {key} requires at least {MIN_ROWS} source rows, got "
                f"{learned}."
            )
            raise ResizeError(message, f"Remove {key}: shorter tables are interpolated.")
    for key in ("repeat", "within"):
        _, stop = choice.settings[key] or (0, 0)
        if stop > learned:
            message = (
                f"--method {choice.text}: {key} ends after the last of the {learned} source rows."
            )
            raise ResizeError(message, f"Use an end of at most {learned}.")
