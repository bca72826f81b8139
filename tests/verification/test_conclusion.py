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


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "new differs from base only in its position table."),
        ({"what": "limits"}, "new differs from base only in its length limits."),
        (
            {"what": "rotary"},
            "new differs from base only in its rotary settings and length limits.",
        ),
        ({"what": "same"}, "new matches base (nothing was resized)."),
        (
            {"what": "same", "adapted": ("a",)},
            "new differs from base only in tensors with adapters.",
        ),
        (
            {"adapted": ("a",)},
            "new differs from base only in its position table and in tensors with adapters.",
        ),
        (
            {"trainable": "new"},
            "new differs from base only in its position table (resized, new rows trained).",
        ),
        (
            {"trainable": "positions", "what": "same"},
            "new differs from base only in its position table (rows trained).",
        ),
        (
            {"what": "converted", "method": None},
            "new is a conversion of base: every tensor is the stated rearrangement or sum of the "
            "base's.",
        ),
        (
            {"what": "converted", "method": None, "adapted": ("a",)},
            "new is a conversion of base: every tensor without an adapter is the stated "
            "rearrangement or sum of the base's.",
        ),
        (
            {"what": "converted", "method": "copy"},
            "new is a conversion of base: every tensor but the position table (resized by copy) is "
            "the stated rearrangement or sum of the base's.",
        ),
    ],
    ids=str,
)
def test_conclusion_names_each_place_that_differs(fields: dict[str, Any], verdict: str) -> None:
    found = result(FILES, **fields)
    assert found.passed
    assert found.conclusion == f"Verified: {verdict}"


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (
            FILES | {"tensors": "failed", "table": "failed"},
            "new is not a pure resize of base (failed: tensors, table).",
        ),
        (
            FILES | {"table": "not checked"},
            "method copy is not registered (not checked: table).",
        ),
        (
            FILES | MODELS | {"runs": "failed"},
            "the files of new are those of a pure resize of base, but the model in transformers is "
            "not right (failed: runs).",
        ),
        (
            FILES | dict.fromkeys(MODELS, "not checked"),
            "the files of new are right, but nothing of the models was checked. Not checked: loads "
            "(why loads); runs (why runs); outputs (why outputs).",
        ),
    ],
    ids=str,
)
def test_conclusion_says_what_failed_or_was_not_checked(
    statuses: dict[str, Status], verdict: str
) -> None:
    found = result(statuses)
    assert not found.passed
    assert found.conclusion == f"Not verified: {verdict}"


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
