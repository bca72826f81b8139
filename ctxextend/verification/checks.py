"""One check of `verify`: its evidence, and the status that follows from it."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ctxextend.json_output import not_in_json

# The checks of ``--deep``, which load the models; all others read files.
MODEL_CHECKS = ("loads", "runs", "outputs")


@dataclass
class Check:
    """One check, and what it has found, as sentences."""

    # ``readable``, ``tensors``, ``table``, ``files``, ``metadata`` of a GGUF file, or one of
    # `MODEL_CHECKS`.
    name: str
    failures: list[str] = field(default_factory=list, metadata=not_in_json)
    # What was not checked, and why.
    unchecked: list[str] = field(default_factory=list, metadata=not_in_json)
    findings: list[str] = field(default_factory=list, metadata=not_in_json)

    json_properties: ClassVar = ("status", "evidence", "passed")

    @property
    def status(self) -> Literal["passed", "failed", "not checked"]:
        """``not checked``: nothing failed, but something could not be checked."""
        if self.failures:
            return "failed"
        return "not checked" if self.unchecked else "passed"

    @property
    def evidence(self) -> tuple[str, ...]:
        """Failures first, then what was not checked and why, then other findings."""
        return (*self.failures, *self.unchecked, *self.findings)

    @property
    def passed(self) -> bool:
        """Whether everything was checked, and nothing failed."""
        return self.status == "passed"

    @property
    def failed(self) -> bool:
        """Whether something was checked and is wrong."""
        return self.status == "failed"
