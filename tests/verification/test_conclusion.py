"""The conclusion of `verify` in words, and when a result passes."""

from typing import Any

import pytest

from ctxextend import Check, Verification
from ctxextend.verification.checks import Evidence, Status

FILES: dict[str, Status] = {"tensors": "passed", "table": "passed", "files": "passed"}
MODELS: dict[str, Status] = {"loads": "passed", "runs": "passed", "outputs": "passed"}


def result(statuses: dict[str, Status], **fields: Any) -> Verification:
    checks: list[Check] = []
    for name, status in statuses.items():
        checks.append(Check(name, status, (f"why {name}",)))
    values: dict[str, Any] = {"method": "copy", "trainable": None, **fields}
    return Verification(base="base", resized="new", checks=tuple(checks), **values)


def test_a_model_that_was_checked_in_part_passes_and_names_the_rest() -> None:
    found = result(FILES | MODELS | {"outputs": "not checked"})
    assert found.passed
    assert found.conclusion.endswith("table. Not checked: outputs (why outputs).")


@pytest.mark.parametrize(
    ("evidence", "status"),
    [
        (Evidence(findings=["fine"]), "passed"),
        (Evidence(unchecked=["why"], findings=["fine"]), "not checked"),
        (Evidence(failures=["wrong"], unchecked=["why"]), "failed"),
        (Evidence(), "passed"),
    ],
)
def test_a_check_passes_only_if_all_of_it_was_checked(evidence: Evidence, status: Status) -> None:
    check = evidence.check("table")
    assert check.status == status
    assert check.evidence == (*evidence.failures, *evidence.unchecked, *evidence.findings)
