import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.json_output import to_json
from tests.comparisons import comparison, encoders
from tests.test_evaluation_json import errors as evaluation_errors
from tests.test_evaluation_json import parts

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compare.json").read_text())
# A mean reciprocal rank has none.
OPTIONAL = {"perplexity"}
COMPARISONS = {
    "untrained": comparison(),
    "trained": comparison(steps=100),
    "encoders": encoders(),
    "nothing yet": replace(comparison(), rows=(), original=None, complete=False),
}


def framed(found: Comparison) -> dict[str, Any]:
    """The object that compare prints, as it is read again."""
    frame = {"schema_version": 1, "command": "compare", "warnings": list(found.warnings)}
    values: dict[str, Any] = json.loads(json.dumps(frame | to_json(found), allow_nan=False))
    return values


def errors(values: dict[str, Any]) -> list[str]:
    found = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(values)]
    frame = {"schema_version": 1, "command": "evaluate", "warnings": []}
    for row in values["rows"]:
        for outcome in filter(None, (row["untrained"], row["trained"])):
            found += evaluation_errors(frame | outcome["evaluation"])
    return found


def test_compare_json_schema_is_a_schema_that_describes_every_key_and_allows_nothing_else() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    objects = [part for part in parts(SCHEMA) if "properties" in part and "type" in part]
    assert len(objects) == 5
    for part in objects:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) - OPTIONAL == set(part["required"])
        assert all(value.get("description") for value in part["properties"].values())


@pytest.mark.parametrize("found", COMPARISONS.values(), ids=COMPARISONS)
def test_compare_json_is_as_the_schema_describes_it(found: Comparison) -> None:
    assert errors(framed(found)) == []


def test_compare_json_has_null_where_there_is_no_finite_number() -> None:
    found = comparison()
    row = replace(found.rows[0], norms=(math.nan, math.inf, 1.0))
    values = framed(replace(found, rows=(row,), norms=(math.inf, 2.0)))
    assert errors(values) == []
    assert values["norms"] == [None, 2.0]
    assert values["rows"][0]["norms"] == [None, None, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.pop("warnings"),
        lambda frame: frame.update(command="evaluate"),
        lambda frame: frame.update(metric="accuracy"),
        lambda frame: frame["rows"][0].pop("recipe"),
        lambda frame: frame["rows"][1]["untrained"]["behind"].update(perplexity=1.0),
        lambda frame: frame["rows"][0]["untrained"].update(is_level=None),
        lambda frame: frame["rows"][0]["untrained"]["evaluation"].pop("positions"),
        lambda frame: frame["left_out"].update(mean=1),
    ],
)
def test_compare_json_schema_refuses_what_is_broken(change: Callable[[Any], object]) -> None:
    values = framed(comparison())
    change(values)
    assert errors(values)
