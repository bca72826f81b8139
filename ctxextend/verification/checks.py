"""One check of `verify`: its evidence, and the status that follows from it."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

Status = Literal["passed", "failed", "not checked"]

# The checks of ``--deep``, which load the models; all others read files.
MODEL_CHECKS = ("loads", "runs", "outputs", "switch")


@dataclass(frozen=True)
class Check:
    """One check and its evidence."""

    # ``readable``, ``tensors``, ``table``, ``files``, ``metadata`` of a GGUF file, or one of
    # `MODEL_CHECKS`.
    name: str
    status: Status  # ``not checked``: nothing failed, but something could not be checked
    # Failures first, then what was not checked and why, then other findings.
    evidence: tuple[str, ...]

    json_properties: ClassVar = ("passed",)

    @property
    def passed(self) -> bool:
        """Whether everything was checked, and nothing failed."""
        return self.status == "passed"

    @property
    def failed(self) -> bool:
        """Whether something was checked and is wrong."""
        return self.status == "failed"


@dataclass
class Evidence:
    """What a check has found so far, as sentences."""

    failures: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # what was not checked, and why
    findings: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """The status of a check with this evidence: it passes only if all of it was checked."""
        if self.failures:
            return "failed"
        if self.unchecked:
            return "not checked"
        return "passed"

    def check(self, name: str) -> Check:
        """Return the check with this evidence."""
        evidence = (*self.failures, *self.unchecked, *self.findings)
        return Check(name=name, status=self.status, evidence=evidence)
