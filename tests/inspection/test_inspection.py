"""`inspect`: statistics, every checkpoint form, JSON, errors, verdicts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file
from typer.testing import Result

from ctxextend import Inspection, TableReport, inspect, resize
from tests.helpers import pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import invoke

MakePico = Callable[..., pico.Pico]
WPE = "transformer.wpe.weight"
SCHEMA = SCHEMAS["inspect"]


def run(*arguments: object, columns: int | None = None) -> Result:
    return invoke("inspect", *arguments, columns=columns)


def refuse_constant(name: str) -> None:
    pytest.fail(f"{name} is not valid JSON")


def inspected(*arguments: object) -> list[dict[str, Any]]:
    """Return the models that `inspect --json` prints, validated against the schema."""
    done = run("--json", *arguments)
    assert done.exit_code == 0, done.output
    frame = json.loads(done.stdout, parse_constant=refuse_constant)
    assert errors(frame) == []
    models: list[dict[str, Any]] = frame["models"]
    return models


def errors(frame: object) -> list[str]:
    found = Draft202012Validator(SCHEMA).iter_errors(frame)
    return [f"{error.json_path}: {error.message}" for error in found]


def one_line(text: str) -> str:
    """Return a text that was wrapped as one line."""
    return " ".join(text.split())


def numpy_weight(model: Any, name: str) -> Any:
    return model.get_parameter(name).detach().double().numpy()


def only_table(found: Inspection) -> TableReport:
    (table,) = found.tables
    return table


# Tables


def test_inspect_returns_the_place_and_size_of_a_table(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    parameters = [parameter.numel() for parameter in source.load().parameters()]

    found = inspect(source.folder)

    table = only_table(found)
    assert table.name == WPE
    assert table.file == "model.safetensors"
    assert table.config_key == "n_positions"
    assert table.part == ""
    assert table.rows == 16
    assert table.positions == 16
    assert table.reserved_rows == 0
    assert table.hidden_size == 8
    assert table.dtype == "F32"
    assert table.bytes == 16 * 8 * 4
    assert found.parameters == sum(parameters)
    assert table.share == 128 / found.parameters


def test_inspect_returns_the_rows_of_a_table(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    weight = numpy_weight(source.load(), WPE)

    found = inspect(source.folder)

    table = only_table(found)
    assert np.array_equal(table.values, weight)
    assert table.norms == pytest.approx(np.linalg.norm(weight, axis=1))
    assert found.method is None
    assert table.new_rows is None


def test_inspect_separates_reserved_rows(make_pico: MakePico) -> None:
    source = make_pico("roberta")
    weight = numpy_weight(source.load(), "roberta.embeddings.position_embeddings.weight")
    norms = np.linalg.norm(weight, axis=1)

    table = only_table(inspect(source.folder))

    assert table.rows == 18
    assert table.positions == 16
    assert table.reserved_rows == 2
    assert table.norms == pytest.approx(norms)
    assert table.stats.norms == pytest.approx(norms[2:])


def test_inspect_does_not_count_buffers_as_parameters(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    before = inspect(source).parameters
    pico.add_tensors(source, {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)})
    assert inspect(source).parameters == before


@pytest.mark.parametrize(
    ("to", "settings", "new"),
    [
        (8, {}, range(0)),
        (40, {"method": "copy"}, range(16, 40)),
        (40, {"method": "linear"}, range(40)),
    ],
)
@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
def test_inspect_reports_new_and_learned_rows(
    model_type: str, to: int, settings: dict[str, Any], new: range, make_pico: MakePico
) -> None:
    source = make_pico(model_type).folder
    output = resize(source, to=to, output="out", **settings).output

    before = only_table(inspect(source))
    table = only_table(inspect(output))

    first = table.reserved_rows
    assert [position for position in range(to) if table.is_new(position)] == list(new)
    kept = [first + position for position in range(min(to, 16)) if position not in new]
    assert np.array_equal(table.values[kept], before.values[kept])


def test_inspect_ignores_a_recipe_without_provenance(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    (source / "ctxextend.yaml").write_text("source: x\nresize: {to: 3}\n")
    assert only_table(inspect(source)).new_rows is None


def test_inspect_finds_repeated_rows_of_a_resize() -> None:
    output = resize("tiny-gpt2", to=512, method="copy", output="out").output
    (model,) = inspected(output)
    (table,) = model["tables"]
    assert model["method"] == "copy"
    assert table["new_rows"] == [[128, 512]]
    assert table["tiling"] == {"period": 128, "start": 0, "stop": 512, "copies": 4.0}
    assert table["untrained_rows"] == []
    limits = {limit["tokens"] for limit in model["limits"]}
    assert limits == {512}


def extend_by_hand(folder: Path, deviation: float) -> Path:
    """Save tiny-gpt2 with as many randomly initialised rows after its trained ones."""
    shutil.copytree(inspect("tiny-gpt2").folder, folder)
    torch.manual_seed(0)
    learned = load_file(folder / "model.safetensors")[WPE]
    untrained = torch.empty(128, 128).normal_(0, deviation)
    pico.add_tensors(folder, {WPE: torch.cat([learned, untrained])})
    pico.edit_json(folder / "config.json", n_positions=256, initializer_range=deviation)
    return folder


@pytest.mark.parametrize("deviation", [0.02, 0.11])
def test_inspect_finds_randomly_initialised_rows(deviation: float, tmp_path: Path) -> None:
    folder = extend_by_hand(tmp_path / "extended", deviation)
    table = only_table(inspect(folder))
    assert set(table.untrained) <= set(range(128, 256))
    assert set(table.untrained.values()) == {deviation}
    assert len(table.untrained) >= 126
    text = one_line(run(folder, columns=120).stdout)
    assert "looks untrained: 12" in text
    assert f"like random initialisation with std {deviation})" in text


def add_bad_rows(folder: Path) -> None:
    table = load_file(folder / "model.safetensors")[WPE]
    table[3] = 0
    table[5, 2] = float("nan")
    table[7, 0] = float("-inf")
    table[9] = table[2]
    pico.add_tensors(folder, {WPE: table})


def test_inspect_json_reports_nan_and_zero_rows(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    add_bad_rows(source)
    (model,) = inspected(source)
    (table,) = model["tables"]
    assert table["nonfinite_rows"] == [[5, 6], [7, 8]]
    assert table["zero_rows"] == [[3, 4]]
    assert table["norm"]["min"] == 0


@pytest.mark.parametrize("value", [float("nan"), 0.0, 1.0])
def test_inspect_handles_constant_tables(value: float, make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.add_tensors(source, {WPE: torch.full((16, 8), value)})
    assert run(source).exit_code == 0
    (model,) = inspected(source)
    (table,) = model["tables"]
    assert (table["neighbour_cosine"]["worst_row"] is None) == (value != 1)


# Every form of a checkpoint


def test_inspect_reads_a_weights_file_with_model_type(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("roberta").folder
    weights = Path(shutil.copy(source / "model.safetensors", tmp_path / "weights.safetensors"))
    expected = only_table(inspect(source))

    found = inspect(weights, model_type="roberta")

    table = only_table(found)
    assert np.array_equal(table.values, expected.values)
    assert [limit.key for limit in found.limits] == [table.name]
    assert "--model-type" in error_of(weights)
    assert run(weights, "--model-type", "roberta").exit_code == 0


def test_inspect_part_selects_a_table(tmp_path: Path) -> None:
    led = pico.make_led(tmp_path / "led")
    assert [table.part for table in inspect(led).tables] == ["encoder", "decoder"]
    table = only_table(inspect(led, part="decoder"))
    assert table.part == "decoder"
    assert table.positions == 16


# JSON


def test_inspect_json_reports_limits_that_disagree(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions="1024")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e400}')
    (model,) = inspected(folder)
    wrong = [limit for limit in model["limits"] if not limit["agrees"]]
    assert [limit["value"] for limit in wrong] == ["1024", "inf"]
    for limit in wrong:
        assert limit["tokens"] is None
        assert limit["fix"].startswith("ctxextend resize ")


# Errors


def error_of(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    as_json = run(*arguments, "--json")
    error = json.loads(as_json.stdout)["error"]
    assert error["message"]
    return done.stderr


# The verdict


def test_inspect_verdict_states_the_length_of_each_part(tmp_path: Path) -> None:
    led = inspect(pico.make_led(tmp_path / "led"))
    assert led.verdict.startswith("encoder 32, decoder 16 positions, all files agree; ")


def test_inspect_check_exits_with_0_if_limits_agree() -> None:
    done = run("tiny-gpt2", "--check", "-q")
    assert done.exit_code == 0
    assert done.stdout == f"{inspect('tiny-gpt2').verdict}\n"
    assert done.stderr == ""


def test_inspect_check_exits_with_3_if_limits_disagree(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=8)

    done = run("tiny-gpt2", folder, "--check", "-q", columns=1000)
    assert done.exit_code == 3
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"tiny-gpt2: {inspect('tiny-gpt2').verdict}",
        f"{folder}: {inspect(folder).verdict}",
        f"Fix: ctxextend resize {folder} --to 16 --fix-limits --output {folder}-16",
    ]

    as_json = run(folder, "--check", "--json")
    assert as_json.exit_code == 3
    (model,) = json.loads(as_json.stdout)["models"]
    assert model["agrees"] is False

    without_check = run(folder)
    assert without_check.exit_code == 0
