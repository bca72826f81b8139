"""`inspect`: statistics, every checkpoint form, several models, rows, JSON, errors, verdicts."""

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
from ctxextend.inspection.table_report import report_rows
from ctxextend.json_output import to_json
from tests.helpers import imports, pico
from tests.helpers.json_schemas import SCHEMAS
from tests.helpers.trainings import invoke

MakePico = Callable[..., pico.Pico]
WPE = "transformer.wpe.weight"
SCHEMA = SCHEMAS["inspect"]


def run(*arguments: object) -> Result:
    return invoke("inspect", *arguments)


def inspected(*arguments: object) -> list[dict[str, Any]]:
    """Return the models that `inspect --json` prints, validated against the schema."""
    done = run("--json", *arguments)
    assert done.exit_code == 0, done.output
    frame = json.loads(
        done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not valid JSON")
    )
    assert errors(frame) == []
    models: list[dict[str, Any]] = frame["models"]
    return models


def errors(frame: object) -> list[str]:
    return [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(SCHEMA).iter_errors(frame)
    ]


def only_table(found: Inspection) -> TableReport:
    (table,) = found.tables
    return table


def origins(table: TableReport) -> list[str]:
    return [row.origin for row in report_rows(table, slice(None))]


# Tables


def test_inspect_returns_table_statistics(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    found, model = inspect(source.folder), source.load()
    table = only_table(found)
    weight = model.transformer.wpe.weight.detach().double().numpy()
    assert (table.name, table.file, table.config_key, table.part) == (
        WPE,
        "model.safetensors",
        "n_positions",
        "",
    )
    assert (table.rows, table.positions, table.reserved_rows, table.hidden_size) == (16, 16, 0, 8)
    assert (table.dtype, table.bytes) == ("F32", 16 * 8 * 4)
    assert found.parameters == sum(one.numel() for one in model.parameters())
    assert table.share == 128 / found.parameters
    assert table.norms == pytest.approx(np.linalg.norm(weight, axis=1))
    assert np.array_equal(table.values, weight)
    assert (found.method, table.new_rows) == (None, None)
    assert set(origins(table)) == {""}


def test_inspect_separates_reserved_rows(make_pico: MakePico) -> None:
    source = make_pico("roberta")
    table = only_table(inspect(source.folder))
    weight = source.load().roberta.embeddings.position_embeddings.weight.detach().double().numpy()
    norms = pytest.approx(np.linalg.norm(weight, axis=1))
    assert (table.rows, table.positions, table.reserved_rows) == (18, 16, 2)
    assert table.norms == norms
    assert [*table.norms[:2], *table.stats.norms] == norms
    assert origins(table)[:3] == ["reserved", "reserved", ""]


def test_inspect_does_not_count_buffers_as_parameters(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    before = inspect(source).parameters
    pico.add_tensors(source, {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)})
    assert inspect(source).parameters == before


@pytest.mark.parametrize(
    ("to", "settings", "new"),
    [
        (8, {}, range(0)),
        (16, {}, range(0)),
        (40, {"method": "copy"}, range(16, 40)),
        (40, {"method": "sinusoidal"}, range(16, 40)),
        (40, {"method": "linear"}, range(40)),
        (40, {"method": "sinusoidal:scope=all"}, range(40)),
        (40, {"method": "stretch", "keep_first": 5}, range(5, 40)),
        (40, {"method": "sinusoidal:scope=all", "keep_first": 1}, range(1, 40)),
    ],
)
@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
def test_inspect_reports_new_and_learned_rows(
    model_type: str, to: int, settings: dict[str, Any], new: range, make_pico: MakePico
) -> None:
    source = make_pico(model_type).folder
    old, table = (
        only_table(inspect(source)),
        only_table(inspect(resize(source, to=to, output="out", **settings).output)),
    )
    first = table.reserved_rows
    assert [position for position in range(to) if table.is_new(position)] == list(new)
    assert origins(table)[: first + to] == [
        *["reserved"] * first,
        *("new" if position in new else "learned" for position in range(to)),
    ]
    kept = [first + position for position in range(min(to, 16)) if position not in new]
    assert np.array_equal(table.values[kept], old.values[kept])


def test_inspect_ignores_a_recipe_without_provenance(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    (source / "ctxextend.yaml").write_text("source: x\nresize: {to: 3}\n")
    assert only_table(inspect(source)).new_rows is None


def test_inspect_finds_repeated_rows_and_seams_of_a_resize() -> None:
    (model,) = inspected(resize("tiny-gpt2", to=512, method="copy", output="out").output)
    (table,) = model["tables"]
    assert (model["method"], table["new_rows"]) == ("copy", [[128, 512]])
    assert table["tiling"] == {"period": 128, "start": 0, "stop": 512, "copies": 4.0}
    assert table["seams"] == [{"length": 128, "positions": [128, 256, 384]}]
    assert table["untrained_rows"] == []
    assert {limit["tokens"] for limit in model["limits"]} == {512}


@pytest.mark.parametrize(("method", "positions"), [("copy", (100, 200)), ("sinusoidal", (100,))])
def test_inspect_finds_seams_at_multiples_of_the_old_length(
    method: str, positions: tuple[int, ...]
) -> None:
    short = resize("tiny-gpt2", to=100, output="short").output
    table = only_table(inspect(resize(short, to=300, method=method, output="out").output))
    assert table.seams[100] == positions


@pytest.mark.parametrize("deviation", [0.02, 0.11])
def test_inspect_finds_randomly_initialised_rows(deviation: float, tmp_path: Path) -> None:
    """Trained rows followed by randomly initialised ones, as when a table is extended by hand."""
    folder = Path(shutil.copytree(inspect("tiny-gpt2").folder, tmp_path / "extended"))
    torch.manual_seed(0)
    learned = load_file(folder / "model.safetensors")[WPE]
    pico.add_tensors(
        folder, {WPE: torch.cat([learned, torch.empty(128, 128).normal_(0, deviation)])}
    )
    pico.edit_json(folder / "config.json", n_positions=256, initializer_range=deviation)
    table = only_table(inspect(folder))
    assert set(table.untrained) <= set(range(128, 256))
    assert set(table.untrained.values()) == {deviation}
    assert len(table.untrained) >= 126
    text = " ".join(run(folder, "--width", 120).stdout.split())
    assert "looks untrained: 12" in text
    assert f"like random initialisation with std {deviation})" in text
    pico.edit_json(folder / "config.json", initializer_range=None)
    assert (only_table(inspect(folder)).untrained != {}) == (
        deviation == 0.02
    )  # the default of transformers


def add_bad_rows(folder: Path) -> None:
    table = load_file(folder / "model.safetensors")[WPE]
    table[3] = 0
    table[5, 2] = float("nan")
    table[7, 0] = float("-inf")
    table[9] = table[2]
    pico.add_tensors(folder, {WPE: table})


def test_inspect_reports_nan_zero_and_duplicate_rows(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    add_bad_rows(source)
    table = only_table(inspect(source))
    assert (table.stats.nonfinite, table.stats.zeros) == ((5, 7), (3,))
    assert table.repetition.groups == ((2, 9),)
    screen = run(source).stdout
    for line in ("NaN or infinity: 5, 7", "zero rows: 3", "duplicate rows: 2, 9"):
        assert f"  {line}\n" in screen
    values = inspected(source)[0]["tables"][0]
    assert (values["nonfinite_rows"], values["zero_rows"], values["duplicates"]) == (
        [5, 7],
        [3],
        [[2, 9]],
    )
    assert values["norms"][5] is None
    assert values["norm"]["min"] == 0
    assert [row for row, cosine in enumerate(values["neighbour_cosines"]) if cosine is None] == [
        2,
        3,
        4,
        5,
        6,
        7,
    ]


def test_inspect_handles_constant_tables_and_a_single_row(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    for value in (float("nan"), 0.0, 1.0):
        pico.add_tensors(source, {WPE: torch.full((16, 8), value)})
        assert run(source).exit_code == 0
        (table,) = inspected(source)[0]["tables"]
        assert (table["neighbour_cosine"]["worst_row"] is None) == (value != 1)
    one = make_pico("gpt2", "one", n_positions=1).folder
    assert run(one).exit_code == run(one, "--json").exit_code == run(one, source).exit_code == 0


# Every form of a checkpoint


def test_inspect_reads_a_weights_file_with_model_type(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("roberta").folder
    weights = Path(shutil.copy(source / "model.safetensors", tmp_path / "weights.safetensors"))
    found = inspect(weights, model_type="roberta")
    assert np.array_equal(only_table(found).values, only_table(inspect(source)).values)
    assert found.libraries == ()
    assert [limit.key for limit in found.limits] == [only_table(found).name]
    assert "--model-type" in error_of(weights)
    assert run(weights, "--model-type", "roberta").exit_code == 0


@pytest.mark.parametrize("flags", [("--json",), ("tiny-gpt2", "--rows", "0:3")])
def test_inspect_does_not_import_torch_or_transformers(flags: tuple[str, ...]) -> None:
    loaded = imports.loaded_after(imports.command("inspect", "tiny-gpt2", *flags))
    assert "numpy" in loaded
    assert not loaded & {
        *imports.HEAVY,
        "huggingface_hub",
        "safetensors",
        "sentence_transformers",
    }


# Side by side


def test_inspect_shows_several_models(make_pico: MakePico) -> None:
    first, second = make_pico("gpt2").folder, make_pico("bert").folder
    models = inspected(first, second, "tiny-gpt2")
    assert [model["model_type"] for model in models] == ["gpt2", "bert", "gpt2"]
    assert [model["source"] for model in models] == [str(first), str(second), "tiny-gpt2"]
    screen = run(first, second, "tiny-gpt2", "--width", 160).stdout
    names = ("pico-gpt2", "pico-bert", "tiny-gpt2")
    assert all(
        f"Findings in {name}\n" in screen and f"Limits of {name}\n" in screen for name in names
    )


def test_inspect_json_equals_the_library_result(make_pico: MakePico) -> None:
    source = make_pico("roberta").folder
    (model,) = inspected(source)
    assert model == json.loads(json.dumps(to_json(inspect(source))))
    (table,) = model["tables"]
    assert (len(table["norms"]), len(table["neighbour_cosines"])) == (18, 15)
    assert table["norm"]["median"] == pytest.approx(np.median(table["norms"][2:]))


def test_inspect_part_selects_a_table(tmp_path: Path) -> None:
    led = pico.make_led(tmp_path / "led")
    assert [table.part for table in inspect(led).tables] == ["encoder", "decoder"]
    assert [(table.part, table.positions) for table in inspect(led, part="decoder").tables] == [
        ("decoder", 16)
    ]
    assert "The model has one position table: remove --part." in error_of(
        "tiny-gpt2", "--part", "decoder"
    )
    message = error_of(led, "--part", "head")
    assert "--part head: this model has no such part" in message
    assert "encoder" in message
    assert "decoder" in message


# Rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("0:4", [0, 1, 2, 3]), (":2", [0, 1]), ("5", [5]), ("-4:-2", [14, 15]), ("16:99", [16, 17])],
)
def test_inspect_rows_includes_reserved_rows(
    rows: str, expected: list[int], make_pico: MakePico
) -> None:
    source = make_pico("roberta").folder
    ((found,),) = (model["rows"].values() for model in inspected(source, f"--rows={rows}"))
    assert [row["row"] for row in found] == expected
    assert [row["position"] for row in found] == [row - 2 if row >= 2 else None for row in expected]
    assert [row["origin"] for row in found] == ["" if row >= 2 else "reserved" for row in expected]
    lines = run(source, f"--rows={rows}", "--width", 200).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines[2:]] == expected


@pytest.mark.parametrize(
    ("rows", "code", "message"),
    [("9:3", 2, "9:3 is not a valid range"), ("18", 1, "selects no row")],
)
def test_inspect_rows_rejects_empty_ranges(
    rows: str, code: int, message: str, make_pico: MakePico
) -> None:
    done = run(make_pico("roberta").folder, f"--rows={rows}")
    assert (done.exit_code, message in done.stderr) == (code, True)


def test_inspect_rows_prints_statistics_and_remarks(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    add_bad_rows(source)
    lines = run(source, "--rows", "2:10", "--width", 200).stdout.splitlines()
    assert lines[3].endswith("zero row")
    assert lines[3].split()[:4] == ["3", "3", "0.00", "-"]
    assert lines[5].endswith("NaN or infinity")
    assert lines[5].split()[2] == "-"
    row = inspected(source, "--rows", "2:3")[0]["rows"][WPE][0]
    table = load_file(source / "model.safetensors")[WPE].double()
    assert row["norm"] == pytest.approx(float(table[2].norm()))
    assert inspected(source, "--rows", "14:")[0]["rows"][WPE][1]["cosine_to_next"] is None


# JSON


def test_inspect_json_reports_limits_that_disagree(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions="1024")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e400}')
    wrong = [limit for limit in inspected(folder)[0]["limits"] if not limit["agrees"]]
    assert [(limit["value"], limit["tokens"]) for limit in wrong] == [("1024", None), ("inf", None)]
    assert all(limit["fix"].startswith("ctxextend resize ") for limit in wrong)


def test_inspect_json_schema_rejects_missing_and_extra_keys() -> None:
    frame = json.loads(run("tiny-gpt2", "--rows", "0:1", "--plot", "figure.svg", "--json").stdout)
    assert Path("figure.svg").is_file()
    (model,) = frame["models"]
    for part in (
        frame,
        model,
        model["tables"][0],
        model["limits"][0],
        model["libraries"][0],
        model["rows"][WPE][0],
    ):
        part["more"] = 1
        assert errors(frame)
        del part["more"]
        key, value = part.popitem()
        assert errors(frame) or key == "rows"
        part[key] = value
    assert errors(frame) == []


# Errors


def error_of(*arguments: object) -> str:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("Error: ")
    as_json = json.loads(run(*arguments, "--json").stdout)["error"]
    assert as_json["message"]
    return done.stderr


def test_inspect_suggests_working_flags_for_an_unknown_model_type(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", model_type="customgpt")
    hint = error_of(source).splitlines()[-1]
    flags = "--model-type gpt2"
    assert hint.endswith(f" inspect {source} {flags}")
    assert run(source, *flags.split()).exit_code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *(
            (f"--rows={rows}", "is not a valid range: use A:B")
            for rows in ("x", "1:2:3", "-1", "", "1-2")
        ),
        ("--reserved-rows 2", "--reserved-rows"),
        (f"--tensor {WPE} --model-type gpt2", "--model-type"),
        ("--width 20", "--width"),
    ],
)
def test_inspect_rejects_invalid_flags(flags: str, message: str) -> None:
    assert run(*flags.split()).exit_code == 2  # also without a model
    done = run("tiny-gpt2", *flags.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", "").split())
    assert (
        json.loads(run("tiny-gpt2", *flags.split(), "--json").stdout)["error"]["type"]
        == "UsageError"
    )


# The verdict


def test_inspect_verdict_reports_limits_and_rows(make_pico: MakePico, tmp_path: Path) -> None:
    assert inspect("tiny-gpt2").verdict == "128 positions, all files agree; rows look trained."
    longer = inspect(resize("tiny-gpt2", to=512, method="copy", output="out").output)
    assert (
        longer.verdict
        == "512 positions, all files agree; 384 new rows created by copy, not trained yet."
    )
    led = inspect(pico.make_led(tmp_path / "led"))
    assert led.verdict.startswith("encoder 32, decoder 16 positions, all files agree; ")
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=8)
    assert inspect(folder).verdict == (
        "16 positions, but limits disagree (tokenizer_config.json model_max_length is 8); rows "
        "look trained."
    )
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=None)
    assert "tokenizer_config.json model_max_length is unset" in inspect(folder).verdict
    add_bad_rows(folder)
    assert inspect(folder).verdict.endswith("; NaN or infinity: 5, 7.")
    (model,) = inspected(folder)
    assert (model["verdict"], model["agrees"]) == (inspect(folder).verdict, False)


def test_inspect_prints_verdicts_first() -> None:
    resize("tiny-gpt2", to=512, output="out")
    first, second, *_ = run("tiny-gpt2", "out", "--width", 120).stdout.splitlines()
    assert (first, second) == (
        f"tiny-gpt2: {inspect('tiny-gpt2').verdict}",
        f"out: {inspect('out').verdict}",
    )


def test_inspect_check_exits_with_3_if_limits_disagree(make_pico: MakePico) -> None:
    done = run("tiny-gpt2", "--check", "-q")
    assert (done.exit_code, done.stdout, done.stderr) == (
        0,
        f"{inspect('tiny-gpt2').verdict}\n",
        "",
    )
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=8)
    done = run("tiny-gpt2", folder, "--check", "-q", "--width", 200)
    assert (done.exit_code, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [
        f"tiny-gpt2: {inspect('tiny-gpt2').verdict}",
        f"pico-gpt2: {inspect(folder).verdict}",
        f"Fix: ctxextend resize {folder} --to 16 --fix-limits",
    ]
    as_json = run(folder, "--check", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["models"][0]["agrees"]) == (3, False)
    assert run(folder).exit_code == 0
