"""`inspect` of a checkpoint in every form, side by side, by rows, and what it says where it cannot."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from ctxextend import Inspection, TableReport, inspect, resize
from ctxextend.cli.app import app_of
from ctxextend.json_output import to_json
from tests import pico, test_layers

MakePico = Callable[..., pico.Pico]
WPE = "transformer.wpe.weight"
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "inspect.json").read_text())


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app_of(), ["inspect", *map(str, arguments)])


def inspected(*arguments: object) -> list[dict[str, Any]]:
    """The models that inspect prints as JSON, once it is known to be what the schema describes."""
    done = run("--json", *arguments)
    assert done.exit_code == 0, done.output
    frame = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert errors(frame) == []
    models: list[dict[str, Any]] = frame["models"]
    return models


def errors(frame: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(frame)]


def only(found: Inspection) -> TableReport:
    (table,) = found.tables
    return table


def origins(table: TableReport) -> list[str]:
    return [row["origin"] for row in table.row_figures(slice(None))]


def same_table(found: Inspection, source: pico.Pico) -> bool:
    expected = inspect(source.folder)
    mine, theirs = only(found), only(expected)
    assert (found.family, mine.positions) == (expected.family, theirs.positions)
    assert found.parameters == expected.parameters
    return bool(np.array_equal(mine.values, theirs.values)) and bool(np.array_equal(mine.norms, theirs.norms))


# What it says of a table


def test_inspect_describes_the_table(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    found, model = inspect(source.folder), source.load()
    table = only(found)
    weight = model.transformer.wpe.weight.detach().double().numpy()
    assert (table.name, table.file, table.config_key, table.part) == (WPE, "model.safetensors", "n_positions", "")
    assert (table.rows, table.positions, table.reserved_rows, table.hidden_size) == (16, 16, 0, 8)
    assert (table.dtype, table.bytes) == ("F32", 16 * 8 * 4)
    assert found.parameters == sum(one.numel() for one in model.parameters())
    assert table.share == 128 / found.parameters
    assert table.norms == pytest.approx(np.linalg.norm(weight, axis=1))
    assert np.array_equal(table.values, weight)
    assert (found.method, table.new_rows) == (None, None)
    assert set(origins(table)) == {""}


def test_inspect_keeps_offset_rows_apart(make_pico: MakePico) -> None:
    source = make_pico("roberta")
    table = only(inspect(source.folder))
    weight = source.load().roberta.embeddings.position_embeddings.weight.detach().double().numpy()
    assert (table.rows, table.positions, table.reserved_rows) == (18, 16, 2)
    assert table.norms[:2] == pytest.approx(np.linalg.norm(weight[:2], axis=1))
    assert table.stats.norms == pytest.approx(np.linalg.norm(weight[2:], axis=1))
    assert origins(table)[:3] == ["offset", "offset", ""]


def test_inspect_counts_no_buffer_as_parameters(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    before = inspect(source).parameters
    pico.add_tensors(source, {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)})
    assert inspect(source).parameters == before


@pytest.mark.parametrize(
    ("settings", "new"),
    [
        ({"method": "copy"}, range(16, 40)),
        ({"method": "sinusoidal"}, range(16, 40)),
        ({"method": "linear"}, range(40)),
        ({"method": "sinusoidal", "scope": "all"}, range(40)),
        ({"method": "stretch", "keep_first": 5}, range(5, 40)),
        ({"method": "sinusoidal", "scope": "all", "keep_first": 1}, range(1, 40)),
    ],
)
@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
def test_inspect_tells_new_rows_from_learned_ones(
    model_type: str, settings: dict[str, Any], new: range, make_pico: MakePico
) -> None:
    source = make_pico(model_type)
    found = inspect(resize(source.folder, to=40, output="out", **settings).output)
    table = only(found)
    assert found.method == settings["method"]
    assert [position for position in range(40) if table.is_new(position)] == list(new)
    old, offset = only(inspect(source.folder)).values, table.reserved_rows
    kept = [row for row in range(offset, 16 + offset) if origins(table)[row] == "learned"]
    assert all(np.array_equal(table.values[row], old[row]) for row in kept)


@pytest.mark.parametrize("to", [8, 16])
def test_inspect_of_a_table_that_did_not_grow_has_no_new_rows(to: int, make_pico: MakePico) -> None:
    table = only(inspect(resize(make_pico("gpt2").folder, to=to, output="out").output))
    assert table.new_rows == ()
    assert set(origins(table)[:to]) == {"learned"}


@pytest.mark.parametrize("text", ["[", "source: x\nresize: {to: 3}\n"])
def test_inspect_passes_over_a_recipe_that_tells_nothing(text: str, make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    (source / "ctxextend.yaml").write_text(text)
    assert only(inspect(source)).new_rows is None


def test_inspect_of_a_resize_finds_its_tiles_and_seams() -> None:
    (model,) = inspected(resize("tiny-gpt2", to=512, output="out").output)
    (table,) = model["tables"]
    assert (model["method"], table["new_rows"]) == ("copy", [[128, 512]])
    assert table["tiling"] == {"period": 128, "start": 0, "stop": 512, "copies": 4.0}
    assert table["seams"] == [{"length": 128, "positions": [128, 256, 384]}]
    assert table["untrained_rows"] == []
    assert {limit["tokens"] for limit in model["limits"]} == {512}


@pytest.mark.parametrize(("method", "positions"), [("copy", (100, 200)), ("sinusoidal", (100,))])
def test_inspect_finds_the_seams_of_the_length_before(method: str, positions: tuple[int, ...]) -> None:
    short = resize("tiny-gpt2", to=100, output="short").output
    table = only(inspect(resize(short, to=300, method=method, output="out").output))
    assert table.seams[100] == positions


def test_inspect_finds_rows_that_transformers_made_anew(tmp_path: Path) -> None:
    """What `ignore_mismatched_sizes` style surgery leaves: trained rows, and behind them rows of an initialiser."""
    source = inspect("tiny-gpt2")
    shutil.copytree(source.folder, tmp_path / "grown")
    tensors = load_file(tmp_path / "grown" / "model.safetensors")
    torch.manual_seed(0)
    tensors[WPE] = torch.cat([tensors[WPE], torch.empty(128, 128).normal_(0, 0.02)])
    save_file(tensors, tmp_path / "grown" / "model.safetensors", metadata={"format": "pt"})
    pico.edit_json(tmp_path / "grown" / "config.json", n_positions=256)
    table = only(inspect(tmp_path / "grown"))
    assert set(table.untrained) <= set(range(128, 256))
    assert len(table.untrained) >= 126
    text = " ".join(run(tmp_path / "grown", "--width", 120).stdout.split())
    assert "untrained by the look of it: 12" in text
    assert "as an initialiser of std 0.02 leaves them" in text


def test_inspect_goes_by_the_deviation_that_the_config_states(tmp_path: Path) -> None:
    sizes = {"n_embd": 128, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 32}
    config = transformers.GPT2Config(initializer_range=0.11, **sizes)  # type: ignore[arg-type]
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "wide")
    table = only(inspect(tmp_path / "wide"))
    assert len(table.untrained) >= 63
    assert set(table.untrained.values()) == {0.11}
    pico.edit_json(tmp_path / "wide" / "config.json", initializer_range=None)
    assert only(inspect(tmp_path / "wide")).untrained == {}


def spoil(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[WPE][3], tensors[WPE][5, 2], tensors[WPE][7, 0] = 0, float("nan"), float("-inf")
    tensors[WPE][9] = tensors[WPE][2]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_inspect_shows_rows_that_hold_no_numbers_or_nothing(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    spoil(source)
    table = only(inspect(source))
    assert (table.stats.nonfinite, table.stats.zeros) == ((5, 7), (3,))
    assert table.repetition.groups == ((2, 9),)
    screen = run(source).stdout
    for line in ("NaN or infinity at 5, 7", "all zero at 3", "the same row stands at 2, 9"):
        assert f"  {line}\n" in screen
    values = inspected(source)[0]["tables"][0]
    assert (values["nonfinite_rows"], values["zero_rows"], values["duplicates"]) == ([5, 7], [3], [[2, 9]])
    assert values["norms"][5] is None
    assert values["norm"]["min"] == 0
    assert [row for row, cosine in enumerate(values["neighbour_cosines"]) if cosine is None] == [2, 3, 4, 5, 6, 7]


def test_inspect_of_a_table_without_a_number_or_with_one_row(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    for value in (float("nan"), 0.0, 1.0):
        pico.add_tensors(source, {WPE: torch.full((16, 8), value)})
        assert run(source).exit_code == 0
        (table,) = inspected(source)[0]["tables"]
        assert (table["neighbour_cosine"]["worst_row"] is None) == (value != 1)
    one = make_pico("gpt2", "one", n_positions=1).folder
    assert run(one).exit_code == run(one, "--json").exit_code == run(one, source).exit_code == 0


# Every form of a checkpoint


def test_inspect_of_a_weights_file_alone_takes_its_family(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("roberta")
    shutil.copy(source.folder / "model.safetensors", tmp_path / "alone.safetensors")
    found = inspect(tmp_path / "alone.safetensors", family="roberta")
    assert same_table(found, source)
    assert found.clients == ()
    assert [limit.key for limit in found.limits] == [only(found).name]
    assert "--family" in run(tmp_path / "alone.safetensors").stderr
    assert run(tmp_path / "alone.safetensors", "--family", "roberta").exit_code == 0


@pytest.mark.parametrize("form", ["variant", "nested"])
def test_inspect_names_the_file_that_holds_the_table(form: str, make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    copy = Path(shutil.copytree(source.folder, tmp_path / "copy"))
    if form == "variant":
        (copy / "model.safetensors").rename(copy / "model.fp16.safetensors")
        found = inspect(tmp_path, subfolder="copy", variant="fp16")
        assert only(found).file.endswith("model.fp16.safetensors")
    else:
        found = inspect(pico.nest(copy, tmp_path / "sentence"))
        assert only(found).file == "0_Transformer/model.safetensors"
        assert found.limits[0].file == "0_Transformer/config.json"
    assert same_table(found, source)


def test_inspect_of_a_type_of_ones_own(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", model_type="oddgpt")
    described = ("--table", WPE, "--config-key", "n_positions")
    (values,) = inspected(source, *described)
    assert (values["family"], values["tables"][0]["positions"]) == ("oddgpt", 16)
    pico.edit_json(source / "tokenizer_config.json", model_max_length=3)
    mend = inspected(source, *described)[0]["limits"][-1]["mend"]
    assert mend == f"ctxextend resize {source} --to 16 --table {WPE} --config-key n_positions --mend-limits"


@pytest.mark.parametrize("flags", [("--json",), ("tiny-gpt2", "--rows", "0:3")])
def test_inspect_imports_neither_torch_nor_transformers(flags: tuple[str, ...]) -> None:
    loaded = test_layers.loaded_after(test_layers.command("inspect", "tiny-gpt2", *flags))
    assert "numpy" in loaded
    assert not loaded & {*test_layers.HEAVY, "huggingface_hub", "safetensors", "sentence_transformers"}


# Side by side


def test_inspect_shows_several_models_with_their_own_figures(make_pico: MakePico) -> None:
    first, second = make_pico("gpt2").folder, make_pico("bert").folder
    models = inspected(first, second, "tiny-gpt2")
    assert [model["family"] for model in models] == ["gpt2", "bert", "gpt2"]
    assert [model["source"] for model in models] == [str(first), str(second), "tiny-gpt2"]
    screen = run(first, second, "tiny-gpt2", "--width", 160).stdout
    assert "pico-gpt2" in screen
    for name in ("pico-gpt2", "pico-bert", "tiny-gpt2"):
        assert f"Look at, in {name}\n" in screen
        assert f"Limits of {name}\n" in screen


def test_inspect_json_agrees_with_the_library(make_pico: MakePico) -> None:
    source = make_pico("roberta").folder
    (model,) = inspected(source)
    assert model == json.loads(json.dumps(to_json(inspect(source))))
    (table,) = model["tables"]
    assert (len(table["norms"]), len(table["neighbour_cosines"])) == (18, 15)
    assert table["norm"]["median"] == pytest.approx(np.median(table["norms"][2:]))


@pytest.fixture
def led(tmp_path: Path) -> Path:
    sizes: dict[str, Any] = {
        **{"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 32, "attention_window": 4},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8},
        **{"max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 16},
    }
    transformers.LEDModel(transformers.LEDConfig(**sizes)).save_pretrained(tmp_path / "led")
    return tmp_path / "led"


def test_inspect_part_shows_that_table_alone(led: Path) -> None:
    assert [table.part for table in inspect(led).tables] == ["encoder", "decoder"]
    assert [(table.part, table.positions) for table in inspect(led, part="decoder").tables] == [("decoder", 16)]
    done = run(led, "--part", "head")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: --part head: this model has no such part")
    assert "It has one table: leave --part out." in refusal("tiny-gpt2", "--part", "decoder")
    assert "encoder" in done.stderr
    assert "decoder" in done.stderr


# Rows


def rows(source: object, *flags: object) -> list[tuple[int, int | None, str]]:
    (found,) = inspected(source, *flags)[0]["rows"].values()
    return [(row["row"], row["position"], row["origin"]) for row in found]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0:4", [0, 1, 2, 3]),
        (":2", [0, 1]),
        ("5", [5]),
        ("-4:-2", [14, 15]),
        ("16:99", [16, 17]),
    ],
)
def test_inspect_rows_counts_the_tensors_own_rows(given: str, expected: list[int], make_pico: MakePico) -> None:
    source = make_pico("roberta").folder
    found = rows(source, f"--rows={given}")
    assert [row for row, _, _ in found] == expected
    assert all(position == (row - 2 if row >= 2 else None) for row, position, _ in found)
    assert all((origin == "offset") == (row < 2) for row, _, origin in found)
    lines = run(source, f"--rows={given}").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines[2:]] == expected


@pytest.mark.parametrize("given", ["9:3", "18"])
def test_inspect_rows_refuses_to_show_none(given: str, make_pico: MakePico) -> None:
    done = run(make_pico("roberta").folder, f"--rows={given}", "--json")
    assert done.exit_code == 1
    assert "selects none" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("given", ["x", "1:2:3", "-1", "", "1-2"])
def test_inspect_rows_refuses_what_is_no_range(given: str) -> None:
    done = run("tiny-gpt2", f"--rows={given}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no range of rows" in " ".join(done.stderr.replace("│", "").split())


def test_inspect_rows_shows_figures_and_remarks(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    spoil(source)
    lines = run(source, "--rows", "2:10").stdout.splitlines()
    assert "all zero" in lines[3]
    assert lines[3].split()[:4] == ["3", "3", "0.00", "-"]
    assert "holds NaN or infinity" in lines[5]
    assert lines[5].split()[2] == "-"
    figures = inspected(source, "--rows", "2:3")[0]["rows"][WPE][0]
    table = load_file(source / "model.safetensors")[WPE].double()
    assert figures["norm"] == pytest.approx(float(table[2].norm()))
    assert inspected(source, "--rows", "14:")[0]["rows"][WPE][1]["cosine_to_next"] is None


# JSON


def test_inspect_json_says_what_disagrees(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions="1024")
    (model,) = inspected(folder)
    (wrong,) = (limit for limit in model["limits"] if not limit["agrees"])
    assert (wrong["key"], wrong["value"], wrong["tokens"]) == ("n_positions", "1024", None)
    assert wrong["mend"].startswith("ctxextend resize ")


def test_inspect_json_schema_allows_nothing_else() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    frame = json.loads(run("tiny-gpt2", "--rows", "0:1", "--json").stdout)
    (model,) = frame["models"]
    for part in (frame, model, model["tables"][0], model["limits"][0], model["clients"][0], model["rows"][WPE][0]):
        part["more"] = 1
        assert errors(frame)
        del part["more"]
        key, value = part.popitem()
        assert errors(frame) or key == "rows"
        part[key] = value
    assert errors(frame) == []


def test_inspect_json_stands_alone_on_stdout_of_a_process() -> None:
    command = [sys.executable, "-m", "ctxextend", "inspect", "tiny-gpt2", "--json", "--plot", "figure.svg"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert errors(json.loads(done.stdout)) == []
    assert Path("figure.svg").is_file()


# Errors


def refusal(*arguments: object) -> str:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("Error: ")
    as_json = json.loads(run(*arguments, "--json").stdout)["error"]
    assert as_json["message"]
    return done.stderr


def test_inspect_of_an_unknown_type_advises_flags_that_serve(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", model_type="oddgpt")
    advice = refusal(source).splitlines()[-1]
    flags = f"--table {WPE} --config-key n_positions"
    assert advice.endswith(f" inspect {source} {flags}")
    assert run(source, *flags.split()).exit_code == 0


@pytest.mark.parametrize(
    "flags",
    [("--offset", "2"), ("--table", WPE, "--family", "gpt2"), ("--width", "20")],
)
def test_inspect_refuses_flags_without_meaning(flags: tuple[str, ...]) -> None:
    assert run(*flags).exit_code == 2
    done = run("tiny-gpt2", *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    assert json.loads(run("tiny-gpt2", *flags, "--json").stdout)["error"]["type"] == "UsageError"


def test_inspect_gives_no_mend_where_tables_of_one_key_disagree(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("decoder.embed_positions.weight"))
    tensors[name] = tensors[name][:-4].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    wrong = [limit for limit in inspect(folder).limits if not limit.agrees]
    assert wrong
    assert all(limit.mend is None for limit in wrong)
