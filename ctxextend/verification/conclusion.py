"""The result of `verify`, and its conclusion in words."""

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
    def files_passed(self) -> bool:
        """Whether all checks passed that read files."""
        return all(check.passed or check.name in MODEL_CHECKS for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether no check failed, all files were checked, and some of the models if loaded."""
        models = [check for check in self.checks if check.name in MODEL_CHECKS]
        if any(check.failed for check in models):
            return False
        return self.files_passed and (not models or any(check.passed for check in models))

    def __bool__(self) -> bool:
        return self.passed

    @property
    def conclusion(self) -> str:
        """The result in a sentence, and another one if models could not be checked completely."""
        kind = "conversion" if self.what == "converted" else "resize"
        failed = ", ".join(check.name for check in self.checks if check.failed)
        if self.passed:
            text = f"Verified: {self._differences()}."
        elif failed and self.files_passed:
            text = (
                f"Not verified: the files of {self.resized} are those of a pure {kind} of "
                f"{self.base}, but the model in transformers is not right (failed: {failed})."
            )
        elif failed:
            text = (
                f"Not verified: {self.resized} is not a pure {kind} of {self.base} (failed: "
                f"{failed})."
            )
        else:
            text = f"Not verified: nothing failed, but too little of {self.resized} was checked."
        names: dict[str, list[str]] = {}  # of checks that could not be made, by the first reason
        for check in self.checks:
            if check.status == "not checked":
                names.setdefault(check.unchecked[0], []).append(check.name)
        reasons = [f"{', '.join(group)} ({reason})" for reason, group in names.items()]
        if reasons:
            text += f" Not checked: {'; '.join(reasons)}."
        return text

    def _differences(self) -> str:
        """Say where a verified checkpoint differs from its base."""
        places = list[str]()
        if self.trainable:
            rows = "new rows" if self.trainable == "new" else "rows"
            places.append(f"its position table ({rows} trained)")
        elif self.what in CHANGED_PLACES:
            places.append(CHANGED_PLACES[self.what])
        elif self.what == "converted" and self.method is not None:
            places.append(f"its position table (resized by {self.method})")
        if self.adapted:
            places.append("tensors with adapters")
        listed = " and in ".join(places)
        if self.what == "converted":
            text = (
                f"{self.resized} is a conversion of {self.base}: every tensor is the stated "
                "rearrangement or sum of the base's"
            )
            return f"{text}, except in {listed}" if places else text
        if places:
            return f"{self.resized} differs from {self.base} only in {listed}"
        return f"{self.resized} matches {self.base} (nothing was resized)"
