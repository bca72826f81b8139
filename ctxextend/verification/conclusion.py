"""The result of `verify`, and its conclusion in words."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ctxextend.json_output import Result, not_in_json
from ctxextend.verification.checks import MODEL_CHECKS, Check

# What a resize or conversion has changed: rows, rotary settings, only length limits, or nothing.
Changed = Literal["resized", "rotary", "limits", "converted", "same"]
CHANGED_PLACES: dict[Changed, str] = {
    "resized": "its position table",
    "rotary": "its rotary settings and length limits",
    "limits": "its length limits",
}


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result, shows=("conclusion",)):
    """The result of `verify`."""

    base: str  # as given by the user
    resized: str  # as given by the user
    method: str | None  # method that created the rows, ``truncate``, or None of other positions
    trainable: str | None  # what was trained according to the recipe: one of `TRAINABLE`, or None
    checks: tuple[Check, ...]  # in the order they ran
    # Tensors that adapters changed according to the recipe, with ``*`` for layers.
    adapted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what cannot be verified
    what: Changed = field(default="resized", metadata=not_in_json)

    json_properties: ClassVar = ("passed", "conclusion")

    @property
    def model_checks(self) -> tuple[Check, ...]:
        """The checks of ``--deep``, which load the models."""
        return tuple(check for check in self.checks if check.name in MODEL_CHECKS)

    @property
    def file_checks(self) -> tuple[Check, ...]:
        """The checks that read files."""
        return tuple(check for check in self.checks if check.name not in MODEL_CHECKS)

    @property
    def passed(self) -> bool:
        """Whether no check failed, all files were checked, and some of the models if loaded."""
        models = self.model_checks
        if any(check.failed for check in models):
            return False
        if models and not any(check.passed for check in models):
            return False
        return all(check.passed for check in self.file_checks)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def conclusion(self) -> str:
        """The result in a sentence, and another one if models could not be checked completely."""
        verdict = _verified(self) if self.passed else _not_verified(self)
        return " ".join([verdict, *_not_checked(self)])


def _verified(result: Verification) -> str:
    """Say that a checkpoint is verified, and where it differs from its base."""
    if result.what == "converted":
        return (
            f"Verified: {result.resized} is a conversion of {result.base}: "
            f"{_converted_tensors(result)} is the stated rearrangement or sum of the base's."
        )
    places = list[str]()
    if result.trainable:
        places.append(f"its position table ({_trained_rows(result)})")
    elif result.what in CHANGED_PLACES:
        places.append(CHANGED_PLACES[result.what])
    if result.adapted:
        places.append("tensors with adapters")
    if not places:
        return f"Verified: {result.resized} matches {result.base} (nothing was resized)."
    return (
        f"Verified: {result.resized} differs from {result.base} only in {' and in '.join(places)}."
    )


def _converted_tensors(result: Verification) -> str:
    """Return which tensors are the ones that a conversion computes, as a noun."""
    tensors = "every tensor"
    if result.adapted:
        tensors += " without an adapter"
    if result.trainable:
        rows = "new rows" if result.trainable == "new" else "rows"
        tensors += f" but the position table ({rows} trained)"
    elif result.method is not None:
        tensors += f" but the position table (resized by {result.method})"
    return tensors


def _trained_rows(result: Verification) -> str:
    rows = "new rows" if result.trainable == "new" else "rows"
    if result.what == "resized":
        return f"resized, {rows} trained"
    return f"{rows} trained"


def _not_verified(result: Verification) -> str:
    """Say what failed, or that too little was checked."""
    failed = ", ".join(check.name for check in result.checks if check.failed)
    are_files_right = all(check.passed for check in result.file_checks)
    kind = "conversion" if result.what == "converted" else "resize"
    if failed and are_files_right:
        reason = (
            f"the files of {result.resized} are those of a pure {kind} of {result.base}, but the "
            f"model in transformers is not right (failed: {failed})"
        )
    elif failed:
        reason = f"{result.resized} is not a pure {kind} of {result.base} (failed: {failed})"
    elif are_files_right:
        reason = f"the files of {result.resized} are right, but nothing of the models was checked"
    else:
        unchecked = ", ".join(check.name for check in result.checks if not check.passed)
        reason = f"method {result.method} is not registered (not checked: {unchecked})"
    return f"Not verified: {reason}."


def _not_checked(result: Verification) -> Iterator[str]:
    """Yield which checks of models could not be made, and why: the first evidence of each."""
    names: dict[str, list[str]] = {}
    for check in result.model_checks:
        if check.status == "not checked":
            names.setdefault(check.evidence[0], []).append(check.name)
    reasons = [f"{', '.join(group)} ({reason})" for reason, group in names.items()]
    if reasons:
        yield f"Not checked: {'; '.join(reasons)}."
