"""All model types with positions to resize: those with an entry, and those that a rule finds."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.families.registry import ENTRIES
from ctxextend.families.schema import Family
from ctxextend.families.transformers_source import UnclearSourceError, installed_types
from ctxextend.families.unsupported import POSITION_SCHEMES


class KnownFamilies(Mapping[str, Family]):
    """The entries of model types by name.

    A type without an entry in the registry is looked up in the source of the installed
    transformers, only when it is asked for: iteration reads all of it, in about a second.
    """

    def __init__(self) -> None:
        self._found = dict[str, Family | None]()

    def __getitem__(self, model_type: str) -> Family:
        if model_type in ENTRIES:
            return ENTRIES[model_type]
        if model_type not in self._found:
            self._found[model_type] = None  # of a model that contains itself
            self._found[model_type] = self._by_rule(model_type)
        family = self._found[model_type]
        if family is None:
            raise KeyError(model_type)
        return family

    def __iter__(self) -> Iterator[str]:
        yield from ENTRIES
        for model_type in installed_types():
            if model_type not in ENTRIES and model_type in self:
                yield model_type

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, model_type: Any) -> bool:
        return isinstance(model_type, str) and self.get(model_type) is not None

    def _by_rule(self, model_type: str) -> Family | None:
        if model_type in POSITION_SCHEMES:
            return None
        from ctxextend.families.rotary_rule import rule_family  # types with an entry do without

        try:
            return rule_family(model_type, self)
        except UnclearSourceError:
            return None


FAMILIES: Mapping[str, Family] = KnownFamilies()


def is_known(model_type: str) -> bool:
    """Whether the positions of a model type are known, also those that cannot be resized."""
    return model_type in POSITION_SCHEMES or model_type in FAMILIES


def known_names() -> tuple[str, ...]:
    """Return the names of model types, to complete or to correct what a user types.

    Those of the installed transformers are not looked up further: some may have no positions.
    """
    return tuple(dict.fromkeys((*ENTRIES, *POSITION_SCHEMES, *installed_types())))


def why_unclear(model_type: str) -> str:
    """Say why the rule does not find a type with rotary settings, as a clause; empty if it does."""
    from ctxextend.families.rotary_rule import rule_family

    try:
        _ = rule_family(model_type, FAMILIES)
    except UnclearSourceError as error:
        return str(error)
    return ""


def is_found_by_rule(model_type: str) -> bool:
    """Whether a type has no entry in the registry, and the rule finds its positions."""
    return model_type not in ENTRIES and model_type in FAMILIES


def unclear_types() -> dict[str, str]:
    """Return the rotary types of the installed transformers that are not resized, with reasons."""
    reasons = dict[str, str]()
    for model_type in installed_types():
        if not is_known(model_type):
            reason = why_unclear(model_type)
            if reason:
                reasons[model_type] = reason
    return reasons


def unclear_settings(model_type: str, reason: str) -> str:
    """Say that the settings of a type are not changed, since how its classes use them is unclear.

    Args:
        model_type: As in config.json.
        reason: What `why_unclear` says.
    """
    return (
        f"{model_type} is a rotary model type of transformers {transformers_version()}, but how "
        f"its classes use the settings is unclear: {reason}."
    )


def update_hint() -> str:
    """Say how to get model types that the installed transformers does not have."""
    installed = transformers_version()
    return f"Types newer than transformers {installed} need an update: pip install -U transformers."


def transformers_version() -> str:
    """Return the version of the installed transformers."""
    from importlib.metadata import version  # it takes as long to import as a short command

    return version("transformers")
