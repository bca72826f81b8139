"""Parse a method with its settings from text, such as ``bands:sigma=4,keep-first=1``."""

from typing import Any

from ctxextend.errors import ResizeError, did_you_mean, raise_first
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import COUNT, DEFAULT_METHOD, TRUNCATE, Method
from ctxextend.tables.methods import METHODS, TRUNCATION, find_methods


def default_choice(name: str = DEFAULT_METHOD) -> MethodChoice:
    """Return a method of tables with its default settings."""
    return _complete(METHODS[name], {})


def parse_method(text: str) -> MethodChoice:
    """Parse a method with its settings; those that are not given have their defaults.

    Methods of tables and of rotary positions can have the same name: the text then means the one
    that accepts all settings, first that of tables.

    Raises:
        ResizeError: The method or a setting is unknown, or a value is invalid; `others` has
            further errors.
    """
    name, _, settings = (part.strip() for part in text.partition(":"))
    methods = [TRUNCATION] if name == TRUNCATE else find_methods(name)
    readings = [(method, *_read_settings(method, settings)) for method in methods]
    method, given, errors = min(readings, key=lambda reading: len(reading[2]))
    raise_first(ResizeError(message, hint) for message, hint in errors)
    return _complete(method, given)


def _complete(method: Method, given: dict[str, Any]) -> MethodChoice:
    """Return a method with the settings that are given, and the defaults of others."""
    keep_first = given.pop("keep_first", method.keep_first or 0)
    defaults = {key: setting.default for key, setting in method.settings.items()}
    return MethodChoice(facts=method, settings=defaults | given, keep_first=keep_first)


def _read_settings(method: Method, text: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Read the settings of a method; return the valid ones, and messages with hints."""
    accepted = dict(method.settings)
    if method is not TRUNCATION and method.keep_first is not None:
        accepted["keep_first"] = COUNT
    names = [key.replace("_", "-") for key in accepted]
    known = f"Settings of {method.name}: {', '.join(names) or 'none'}."
    settings = dict[str, Any]()
    errors = list[tuple[str, str]]()
    for part in text.split(",") if text else ():
        typed, _, value = (word.strip() for word in part.partition("="))
        key = typed.replace("-", "_")
        if key in settings:
            errors.append(
                (f"--method {method.name}: {typed} is given twice.", "Remove one of them.")
            )
        elif key not in accepted:
            near = did_you_mean(typed.replace("_", "-"), names)
            message = f"--method {method.name} has no setting {typed!r:.60}."
            errors.append((message, f"{near} {known}".strip()))
        else:
            try:
                settings[key] = accepted[key].parse(value)
            except ValueError:
                must = accepted[key].must
                message = f"--method {method.name}: {typed} must be {must}, got {value!r:.60}."
                errors.append((message, known))
    if method.name == "bands" and settings.get("sigma") == 0:
        for key in ("repeat", "high_gain"):  # of the high-frequency part, which there is none of
            if key in settings:
                message = f"--method bands: {key.replace('_', '-')} has no effect with sigma=0."
                errors.append((message, "Remove one of them."))
    return settings, errors


TRUNCATION_CHOICE = _complete(TRUNCATION, {})  # of a shorter table
