"""All commands count positions alike, on every model type without a table of rows."""

from pathlib import Path

import pytest

from ctxextend import Inspection, inspect, plan_resize, resize, verify
from ctxextend.json_output import to_json
from tests.helpers import model_types, rules

TYPES = model_types.RULES - model_types.NO_CONFIG


def positions_of(found: Inspection) -> dict[str, int]:
    return {report.part: report.positions for report in found.schemes}


@pytest.mark.parametrize("model_type", model_types.parameters(TYPES))
def test_all_commands_agree_on_the_number_of_positions(model_type: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    rules.save(rules.make_config(model_type), source)
    tables = to_json(plan_resize(source, rules.NEW))["tables"]
    assert positions_of(inspect(source)) == {table["part"]: rules.OLD for table in tables}
    for table in tables:
        assert (table["max_len_before"], table["max_len_after"]) == (rules.OLD, rules.NEW)

    output = resize(source, rules.NEW, output=tmp_path / "out").output
    found = inspect(output)
    assert positions_of(found) == {table["part"]: rules.NEW for table in tables}
    assert found.agrees, found.verdict
    printed = {report["part"]: report["positions"] for report in to_json(found)["schemes"]}
    assert printed == positions_of(found)
    assert verify(output).passed
