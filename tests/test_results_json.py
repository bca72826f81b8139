"""Made-up evaluations and comparisons, as `--json` prints them, held to their schemas."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.evaluation.evaluation_result import Evaluation, LossEstimate
from ctxextend.json_output import to_json
from tests.comparisons import comparison, encoders
from tests.evaluations import EVALUATIONS, EXTENDED

SCHEMAS = {
    name: json.loads((Path(__file__).parent / "schemas" / f"{name}.json").read_text())
    for name in ("evaluate", "compare")
}
# Keys that stand where the base is known, and what a mean reciprocal rank has not.
OPTIONAL = {"truncated", "sliding", "chunks", "perplexity"}
COMPARISONS = {
    "untrained": comparison(),
    "trained": comparison(steps=100),
    "encoders": encoders(),
    "nothing yet": replace(comparison(), rows=(), original=None, complete=False),
}


def framed(found: Evaluation | Comparison) -> dict[str, Any]:
    """The object that a command prints, as it is read again."""
    command = "evaluate" if isinstance(found, Evaluation) else "compare"
    frame = {"schema_version": 1, "command": command, "warnings": list(found.warnings)}
    values: dict[str, Any] = json.loads(json.dumps(frame | to_json(found), allow_nan=False))
    return values


def errors(values: dict[str, Any]) -> list[str]:
    """What a printed object has against its schema; a comparison's evaluations are held to theirs."""
    schema = Draft202012Validator(SCHEMAS[values["command"]])
    found = [f"{error.json_path}: {error.message}" for error in schema.iter_errors(values)]
    for row in values.get("rows", ()):
        for outcome in filter(None, (row["untrained"], row["trained"])):
            found += errors({"schema_version": 1, "command": "evaluate", "warnings": []} | outcome["evaluation"])
    return found


def parts(value: object) -> list[dict[str, Any]]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(part for item in inside for part in parts(item))]


@pytest.mark.parametrize(("name", "objects"), [("evaluate", 13), ("compare", 5)])
def test_schema_describes_every_key_and_allows_nothing_else(name: str, objects: int) -> None:
    found = [part for part in parts(SCHEMAS[name]) if "properties" in part and "type" in part]
    assert len(found) == objects
    for part in found:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) - OPTIONAL == set(part["required"]) - OPTIONAL
        assert all(value.get("description") for value in part["properties"].values())


@pytest.mark.parametrize("found", [*EVALUATIONS.values(), *COMPARISONS.values()], ids=[*EVALUATIONS, *COMPARISONS])
def test_json_is_as_the_schema_describes_it(found: Evaluation | Comparison) -> None:
    assert errors(framed(found)) == []


def test_json_has_null_where_there_is_no_finite_number() -> None:
    assert EXTENDED.positions is not None
    losses = {"model": LossEstimate(math.nan, math.inf, 0), "sliding": LossEstimate(800.0, None, 1)}
    values = framed(replace(EXTENDED, positions=replace(EXTENDED.positions, losses=losses)))
    assert errors(values) == []
    assert values["positions"]["losses"] == {
        "model": {"mean": None, "error": None, "perplexity": None, "tokens": 0},
        "sliding": {"mean": 800.0, "error": None, "perplexity": None, "tokens": 1},
    }
    found = comparison()
    row = replace(found.rows[0], norms=(math.nan, math.inf, 1.0))
    values = framed(replace(found, rows=(row,), norms=(math.inf, 2.0)))
    assert errors(values) == []
    assert (values["norms"], values["rows"][0]["norms"]) == ([None, 2.0], [None, None, 1.0])
