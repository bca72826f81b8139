"""Parse a method with its settings from text, such as ``bands:sigma=4,keep-first=1``."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.errors import ResizeError, did_you_mean, raise_first
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_checks import setting_errors
from ctxextend.tables.method_facts import (
    COUNT,
    DEFAULT_METHOD,
    TRUNCATE,
    Method,
    Setting,
    method_text,
)
from ctxextend.tables.methods import TRUNCATION, find_methods


def read_choice(method: str | None = None, keep_first: int | None = None) -> MethodChoice:
    """Return a method with all of its settings; None means `DEFAULT_METHOD`.

    Args:
        method: A method, with the settings that are not to have their defaults.
        keep_first: Positions at the start that the method does not change; None is the method's
            default.

    Raises:
        ResizeError: The method or a setting is unknown or invalid, or settings conflict.
    """
    raise_first(method_errors(method, keep_first))
    facts, given = parse_method(method)
    keep_first = given.pop("keep_first", keep_first)
    if keep_first is None:
        keep_first = facts.keep_first or 0
    defaults = {key: setting.default for key, setting in facts.settings.items()}
    return MethodChoice(facts=facts, settings=defaults | given, keep_first=keep_first)


def method_errors(method: str | None, keep_first: int | None) -> Iterator[ResizeError]:
    """Yield every invalid or conflicting setting of a method; see `read_choice`."""
    try:
        facts, given = parse_method(method)
    except ResizeError as error:
        yield from setting_errors(None, {}, keep_first)
        for invalid in (error, *error.others):
            invalid.setting = "method"
            yield invalid
    else:
        yield from setting_errors(facts, given, keep_first)


def split_keep_first(text: str) -> tuple[str, int | None]:
    """Return a valid method in its canonical spelling without ``keep_first``, and that."""
    method, given = parse_method(text)
    keep_first = given.pop("keep_first", None)
    return method_text(method.name, given), keep_first


def parse_method(text: str | None) -> tuple[Method, dict[str, Any]]:
    """Parse a method and the settings that its text gives, which may include ``keep_first``.

    Methods of tables and of rotary positions can have the same name: the text then means the one
    that accepts all settings, first that of tables.

    Raises:
        ResizeError: The method or a setting is unknown, or a value is invalid.
    """
    text = DEFAULT_METHOD if text is None else str(text)
    name, _, settings = (part.strip() for part in text.partition(":"))
    methods = [TRUNCATION] if name == TRUNCATE else find_methods(name)
    readings = [(method, *_read_settings(method, settings)) for method in methods]
    method, given, errors = min(readings, key=lambda reading: len(reading[2]))
    raise_first(errors)
    return method, given


def _read_settings(method: Method, text: str) -> tuple[dict[str, Any], list[ResizeError]]:
    """Read comma-separated settings of a method; return those that are valid, and the errors."""
    accepted = _accepted(method)
    settings = dict[str, Any]()
    errors = list[ResizeError]()
    for part in text.split(",") if text else ():
        typed, _, value = (word.strip() for word in part.partition("="))
        key = typed.replace("-", "_")
        if key in settings:
            message = f"--method {method.name}: {typed} is given twice."
            errors.append(ResizeError(message, "Remove one of them."))
        elif key not in accepted:
            errors.append(_unknown_setting(method, typed, accepted))
        else:
            try:
                settings[key] = accepted[key].parse(value)
            except ValueError:
                must = accepted[key].must
                message = f"--method {method.name}: {typed} must be {must}, got {value!r:.60}."
                errors.append(ResizeError(message, _settings_hint(method, accepted)))
    return settings, errors


def _accepted(method: Method) -> dict[str, Setting]:
    """Return the settings that a method accepts in its text."""
    accepted = dict(method.settings)
    if method is TRUNCATION:
        return accepted
    if method.keep_first is not None:
        accepted["keep_first"] = COUNT
    return accepted


def _unknown_setting(method: Method, typed: str, accepted: Mapping[str, Setting]) -> ResizeError:
    hint = _settings_hint(method, accepted)
    if near := did_you_mean(typed.replace("-", "_"), accepted):
        hint = f"{near.replace('_', '-')} {hint}"
    return ResizeError(f"--method {method.name} has no setting {typed!r:.60}.", hint)


def _settings_hint(method: Method, accepted: Mapping[str, Setting]) -> str:
    names = [key.replace("_", "-") for key in accepted]
    listed = ", ".join(names) or "none"
    return f"Settings of {method.name}: {listed}."
