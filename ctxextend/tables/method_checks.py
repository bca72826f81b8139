"""What the settings of a method must satisfy, by themselves and for a table: one rule each."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.errors import ResizeError, flag_name, raise_first
from ctxextend.tables.bands import MIN_ROWS
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import COUNT, TRUNCATE, Method, method_text

CHOOSE_ANOTHER = "Choose another method; list them with `ctxextend methods`."


# ---- settings by themselves


def setting_errors(
    method: Method | None, given: Mapping[str, Any], counts: Mapping[str, int | None]
) -> Iterator[ResizeError]:
    """Yield every invalid or conflicting setting.

    Args:
        method: The method; None if it is not known, so that only the counts are checked.
        given: The settings in its text, each valid by itself.
        counts: The values of ``keep_first``, None if it is not given, and ``drop_last``.
    """
    for key, value in counts.items():
        yield from _count_errors(key, value)
    if method is None:
        return
    for key, value in counts.items():
        if value and key in given:
            yield _given_twice(key, method, given)
    keep_first = given.get("keep_first") or counts["keep_first"]
    drop_last = given.get("drop_last") or counts["drop_last"]
    yield from _inapplicable_counts(method, keep_first or 0, drop_last or 0)
    yield from _unused_by_bands(method, given)


def check_counts(choice: MethodChoice) -> None:
    """Raise ResizeError if a chosen method does not accept the requested counts."""
    raise_first(_inapplicable_counts(choice.facts, choice.keep_first, choice.drop_last))


def _count_errors(key: str, value: int | None) -> Iterator[ResizeError]:
    is_count = type(value) is int and COUNT.allows(value)
    if value is not None and not is_count:
        message = f"{flag_name(key)} must be {COUNT.must}, got {value!r}."
        yield ResizeError(message, setting=key)


def _given_twice(key: str, method: Method, given: Mapping[str, Any]) -> ResizeError:
    text = method_text(method.name, given)
    message = f"{flag_name(key)} is given twice: also in --method {text}."
    return ResizeError(message, "Remove one of them.", key)


def _inapplicable_counts(method: Method, keep_first: int, drop_last: int) -> Iterator[ResizeError]:
    if keep_first and method.keep_first is None:
        message = f"--keep-first does not apply to --method {method.name}."
        yield ResizeError(message, "Remove --keep-first.", "keep_first")
    if drop_last and not method.reads_learned_rows:
        reason = "which reads no learned rows"
        message = f"--drop-last has no effect with --method {method.name}, {reason}."
        yield ResizeError(message, "Remove --drop-last.", "drop_last")


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
    last = choice.drop_last
    if learned - first - last > 0:
        return
    flags = []
    if first:
        flags.append(f"--keep-first {first}")
    if last:
        flags.append(f"--drop-last {last}")
    left = f"none of the {learned} learned positions is left as a source"
    message = f"{' and '.join(flags)} with --method {choice.name}: {left}."
    hint = f"Use a --drop-last below {learned}."
    if last < learned:
        hint = f"Use --keep-first {(learned - last) // 2}."
    raise ResizeError(message, hint)


def _check_can_be_split(choice: MethodChoice, learned: int) -> None:
    source = learned - choice.drop_last
    if choice.name != "bands" or source >= MIN_ROWS:
        return
    for key in ("sigma", "repeat"):
        if choice.settings[key]:
            message = f"{key} requires at least {MIN_ROWS} source rows, got {source}."
            hint = f"Remove {key}: shorter tables are interpolated."
            raise ResizeError(f"--method {choice.text}: {message}", hint)


def _check_ranges(choice: MethodChoice, learned: int) -> None:
    source = learned - choice.drop_last
    if choice.name != "bands":
        return
    for key in ("repeat", "within"):
        _, stop = choice.settings[key] or (0, 0)
        if stop > source:
            found = f"{key} ends after the last of the {source} source rows"
            message = f"--method {choice.text}: {found}."
            raise ResizeError(message, f"Use an end of at most {source}.")


def _check_maximum(choice: MethodChoice, learned: int, rows: int) -> None:
    if choice.facts.max_rows is None:
        return
    first = choice.first_source_row
    source = learned - first - choice.drop_last
    most = choice.facts.max_rows(source)
    if rows - first <= most:
        return
    message = f"--method {choice.name} extends {source} learned positions to at most {most}"
    hint = "Use another method."
    if first + most > learned:
        hint = f"Use --to {first + most} or fewer, or another method."
    raise ResizeError(f"{message}, not to {rows}.", hint)
