"""Differences between JSON values, as `verify` compares files."""

from typing import Any

import pytest

from ctxextend.verification.json_changes import MISSING, changed_values


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 4}, {"a": 4.0}, []),
        ({"a": 1}, {"a": True}, [(("a",), 1, True)]),
        ({"a": 1}, {"a": "1"}, [(("a",), 1, "1")]),
        ({"a": None}, {}, [(("a",), None, MISSING)]),
        ({}, {"a": {"b": 1}}, [(("a",), MISSING, {"b": 1})]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "b": 1}}, [(("a", "c"), 2, 3)]),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, [(("a", "1"), 2, 3), (("a", "2"), MISSING, 4)]),
        ({"a": []}, {"a": {}}, [(("a",), [], {})]),
    ],
)
def test_changed_values_yields_every_difference(
    before: Any, after: Any, changes: list[tuple[Any, ...]]
) -> None:
    assert list(changed_values(before, after)) == changes
