import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ctxextend.evaluation.evaluation_result import Evaluation, LossEstimate
from ctxextend.json_output import to_json
from tests.evaluations import EVALUATIONS, EXTENDED

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "evaluate.json").read_text())
# These hold what was known of the original.
OPTIONAL = {"truncated", "sliding", "chunks"}


def framed(evaluation: Evaluation) -> dict[str, Any]:
    """The object that evaluate prints, as it is read again."""
    frame = {"schema_version": 1, "command": "evaluate", "warnings": list(evaluation.warnings)}
    values: dict[str, Any] = json.loads(json.dumps(frame | to_json(evaluation), allow_nan=False))
    return values


def errors(values: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(values)]


def parts(value: object) -> list[dict[str, Any]]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(part for item in inside for part in parts(item))]


def test_evaluate_json_schema_is_a_schema_that_describes_every_key_and_allows_nothing_else() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    objects = [part for part in parts(SCHEMA) if "properties" in part and "type" in part]
    assert len(objects) == 13
    for part in objects:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) - OPTIONAL == set(part["required"])
        assert all(value.get("description") for value in part["properties"].values())


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=EVALUATIONS)
def test_evaluate_json_is_as_the_schema_describes_it(evaluation: Evaluation) -> None:
    assert errors(framed(evaluation)) == []


def test_evaluate_json_has_null_where_there_is_no_finite_number() -> None:
    assert EXTENDED.positions is not None
    losses = {"model": LossEstimate(math.nan, math.inf, 0), "sliding": LossEstimate(800.0, None, 1)}
    odd = replace(EXTENDED, positions=replace(EXTENDED.positions, losses=losses))
    values = framed(odd)
    assert errors(values) == []
    assert values["positions"]["losses"] == {
        "model": {"mean": None, "error": None, "perplexity": None, "tokens": 0},
        "sliding": {"mean": 800.0, "error": None, "perplexity": None, "tokens": 1},
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.pop("warnings"),
        lambda frame: frame.update(schema_version=2),
        lambda frame: frame.update(command="inspect"),
        lambda frame: frame.update(more=1),
        lambda frame: frame.update(kind="other"),
        lambda frame: frame["positions"].pop("changes"),
        lambda frame: frame["positions"]["losses"].pop("model"),
        lambda frame: frame["positions"]["losses"].update(other=None),
        lambda frame: frame["positions"]["losses"]["model"].update(mean="NaN"),
        lambda frame: frame["positions"]["buckets"][0].update(start=-1),
        lambda frame: frame["contexts"]["points"][0].pop("original"),
        lambda frame: frame["contexts"]["points"][0]["change"].update(perplexity=1.0),
        lambda frame: frame["passkey"]["found"][0].append(1.5),
        lambda frame: frame["passkey"].update(how="asked"),
        lambda frame: frame["retrieval"]["ways"]["model"].update(recall=2.0),
    ],
)
def test_evaluate_json_schema_refuses_what_is_broken(change: Callable[[Any], object]) -> None:
    values = framed(EXTENDED)
    change(values)
    assert errors(values)
