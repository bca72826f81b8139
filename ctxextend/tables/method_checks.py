"""What the settings of a method must satisfy, by themselves and for a table: one rule each."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.tables.bands import MIN_ROWS
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import COUNT, TRUNCATE, Method, method_text

CHOOSE_ANOTHER = "Choose another method; list them with `ctxextend methods`."


# ---- settings by themselves


def setting_errors(
    method: Method | None, given: Mapping[str, Any], keep_first: int | None
) -> Iterator[ResizeError]:
    """Yield every invalid or conflicting setting.

    Args:
        method: The method; None if it is not known, so that only the number of rows is checked.
        given: The settings in its text, each valid by itself.
        keep_first: The value of ``keep_first``, None if it is not given.
    """
    is_count = type(keep_first) is int and COUNT.allows(keep_first)
    if keep_first is not None and not is_count:
        message = f"--keep-first must be {COUNT.must}, got {keep_first!r}."
        yield ResizeError(message, setting="keep_first")
    if method is None:
        return
    if keep_first and "keep_first" in given:
        text = method_text(method.name, given)
        message = f"--keep-first is given twice: also in --method {text}."
        yield ResizeError(message, "Remove one of them.", "keep_first")
    yield from inapplicable_count(method, given.get("keep_first") or keep_first or 0)
    yield from _unused_by_bands(method, given)


def inapplicable_count(method: Method, keep_first: int) -> Iterator[ResizeError]:
    """Yield an error if rows are to be kept by a method that does not accept it."""
    if keep_first and method.keep_first is None:
        message = f"--keep-first does not apply to --method {method.name}."
        yield ResizeError(message, "Remove --keep-first.", "keep_first")


def _unused_by_bands(method: Method, given: Mapping[str, Any]) -> Iterator[ResizeError]:
    """Yield the settings of the high-frequency part, if there is none."""
    if method.name != "bands" or given.get("sigma") != 0:
        return
    for key in ("repeat", "high_gain"):
        if key in given:
            message = f"--method bands: {key.replace('_', '-')} has no effect with sigma=0."
            yield ResizeError(message, "Remove one of them.", "method")


# ---- settings for a table


def check_source_rows(learned: int, rows: int, choice: MethodChoice) -> None:
    """Raise ResizeError if a method cannot extend a table of `learned` rows to `rows`."""
    _check_creates_rows(choice, learned, rows)
    _check_keeps_more(choice, learned)
    _check_source_is_left(choice, learned)
    _check_can_be_split(choice, learned)
    _check_ranges(choice, learned)
    _check_maximum(choice, learned, rows)


def _check_creates_rows(choice: MethodChoice, learned: int, rows: int) -> None:
    if choice.name == TRUNCATE:
        found = f"{rows} positions are more than the {learned} learned ones"
        message = f"--method {TRUNCATE} creates no new rows, and {found}."
        raise ResizeError(message, CHOOSE_ANOTHER)


def _check_keeps_more(choice: MethodChoice, learned: int) -> None:
    first = choice.first_source_row
    if choice.keeps_learned_rows and first >= learned:
        message = f"--keep-first {first}: {choice.name} keeps all {learned} already."
        raise ResizeError(message, "Remove --keep-first.")


def _check_source_is_left(choice: MethodChoice, learned: int) -> None:
    first = choice.first_source_row
    if learned > first:
        return
    left = f"none of the {learned} learned positions is left as a source"
    message = f"--keep-first {first} with --method {choice.name}: {left}."
    raise ResizeError(message, f"Use --keep-first {learned // 2}.")


def _check_can_be_split(choice: MethodChoice, learned: int) -> None:
    if choice.name != "bands" or learned >= MIN_ROWS:
        return
    for key in ("sigma", "repeat"):
        if choice.settings[key]:
            message = f"{key} requires at least {MIN_ROWS} source rows, got {learned}."
            hint = f"Remove {key}: shorter tables are interpolated."
            raise ResizeError(f"--method {choice.text}: {message}", hint)


def _check_ranges(choice: MethodChoice, learned: int) -> None:
    if choice.name != "bands":
        return
    for key in ("repeat", "within"):
        _, stop = choice.settings[key] or (0, 0)
        if stop > learned:
            found = f"{key} ends after the last of the {learned} source rows"
            message = f"--method {choice.text}: {found}."
            raise ResizeError(message, f"Use an end of at most {learned}.")


def _check_maximum(choice: MethodChoice, learned: int, rows: int) -> None:
    if choice.facts.max_rows is None:
        return
    first = choice.first_source_row
    source = learned - first
    most = choice.facts.max_rows(source)
    if rows - first <= most:
        return
    message = f"--method {choice.name} extends {source} learned positions to at most {most}"
    hint = "Use another method."
    if first + most > learned:
        hint = f"Use --to {first + most} or fewer, or another method."
    raise ResizeError(f"{message}, not to {rows}.", hint)
