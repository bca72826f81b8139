"""Results as plain values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ctxextend.json_output import json_key, not_in_json, to_json


@dataclass(frozen=True)
class Loss:
    mean: float
    tokens: int = 2

    json_properties: ClassVar = ("perplexity",)

    @property
    def perplexity(self) -> float:
        return self.mean * 2


@dataclass(frozen=True)
class Result:
    output: Path
    losses: dict[int, Loss]
    norms: np.ndarray
    log: str = field(default="long", metadata=not_in_json)


def test_to_json_writes_fields_in_order_then_named_properties() -> None:
    result = Result(Path("out"), {8: Loss(1.5)}, np.array([1, 2], np.float32))
    expected = {"output": "out", "losses": {"8": {"mean": 1.5, "tokens": 2, "perplexity": 3.0}}, "norms": [1.0, 2.0]}
    assert to_json(result) == expected
    assert list(to_json(result)) == ["output", "losses", "norms"]


def test_to_json_writes_null_for_numbers_that_are_not_finite_and_refuses_what_json_cannot_say() -> None:
    assert to_json([float("nan"), np.float32("inf"), np.array([np.nan, 1.0])]) == [None, None, [None, 1.0]]
    with pytest.raises(TypeError, match="object"):
        to_json({"a": object()})


def test_to_json_renames_fields_and_properties() -> None:
    @dataclass(frozen=True)
    class Check:
        passed: bool = field(metadata=json_key("holds"))

        json_properties: ClassVar = {"proved": "passed"}

    assert to_json(Check(True)) == {"holds": True, "proved": True}
