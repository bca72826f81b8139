"""Validates the --json output of every command against its schema in tests/schemas."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from ctxextend import convert, resize
from ctxextend.cli.app import COMMANDS, build_app
from ctxextend.json_output import to_json
from ctxextend.lab.evaluation import Evaluation
from tests.helpers.evaluations import EVALUATIONS, EXTREMES, extreme
from tests.helpers.gguf_files import WIDTH, write_gguf
from tests.helpers.json_schemas import SCHEMAS, check
from tests.helpers.repository import ROOT

ARGUMENTS = [
    "resize tiny-gpt2 --to 512",
    "resize tiny-gpt2 --to 512 --method bands:sigma=6,repeat=20:90 --verify -o bands",
    "resize tiny-gpt2 --to 64 --dry-run",
    "convert tiny-gpt2 --scheme rotary --to 4x --verify",
    "resize tiny-gpt2 --to 512 --for vllm -o for-vllm",
    "train tiny-gpt2-256 --data texts.jsonl --steps 1 -o trained-again",
    "train tiny-gpt2-256 --data texts.jsonl --steps 1 --dry-run",
    "inspect tiny-gpt2 tiny-gpt2-256",
    "verify tiny-gpt2-256 --base tiny-gpt2",
    "resize model.gguf --to 4x -o longer.gguf",
    "inspect model.gguf bert.gguf",
    "verify resized.gguf --base model.gguf",
    "evaluate tiny-gpt2-256 --data texts.jsonl --tokens 512 --measure position --measure context",
    "evaluate tiny-gpt2 --to 256 --data texts.jsonl --method copy --method linear --tokens 512 "
    "--measure position",
    "run tiny-gpt2-256/ctxextend.yaml --output again",
    "run tiny-gpt2-256/ctxextend.yaml --dry-run",
    "run evaluate.yaml",
    "recipes",
    "recipes gpt2-4096",
    "families",
    "families bart roberta llama",
    "methods",
    pytest.param("demo", marks=pytest.mark.slow),
]
FAILING = {
    "resize nothing-here --to 512": 1,
    "resize tiny-gpt2": 2,
    "resize tiny-gpt2 --to 512 --for mlx": 1,
    "train tiny-gpt2 --data no-such.txt --steps 1": 1,
    "run no-such.yaml": 1,
    "train model.gguf --data no-such.txt --steps 1": 1,
    "recipes no-such": 2,
}


# ---- commands
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    resize("tiny-gpt2", to=256, output=folder / "tiny-gpt2-256")
    convert("tiny-gpt2", scheme="rotary", to=512, output=folder / "twin")
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(config))
    write_gguf(folder / "model.gguf")
    write_gguf(folder / "bert.gguf", "bert", table=np.ones((16, WIDTH), np.float32))
    resize(folder / "model.gguf", "2x", output=folder / "resized.gguf")
    readme = (ROOT / "README.md").read_text()
    documents = []
    for start in range(0, 36_000, 1500):
        document = {"text": readme[start : start + 1500]}
        documents.append(json.dumps(document))
    (folder / "texts.jsonl").write_text("\n".join(documents))
    evaluate = "  data: [texts.jsonl]\n  tokens: 512\n  measure: [position]\n"
    (folder / "evaluate.yaml").write_text(f"source: tiny-gpt2\nevaluate:\n{evaluate}")
    return folder


def run_json(arguments: str) -> tuple[int, Any]:
    flags = ["--json"]
    if arguments.startswith(("resize", "convert")):
        flags.append("--quiet")
    done = CliRunner().invoke(build_app(), [*arguments.split(), *flags])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_json_of_a_command_matches_its_schema(
    arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *_ = arguments.split()
    monkeypatch.chdir(folder)
    code, value = run_json(arguments)
    assert code == 0
    check(value, command)


@pytest.mark.parametrize("arguments", FAILING)
def test_json_of_an_error_matches_its_schema(arguments: str) -> None:
    code, value = run_json(arguments)
    assert code == FAILING[arguments]
    check(value, "error")
    assert (value["error"]["type"] in ("UsageError", "MethodError")) == (code == 2)


# ---- prepared evaluations


def printed_object(result: Evaluation) -> dict[str, Any]:
    """Return the JSON object that the command prints, parsed again."""
    header = {"schema_version": 1, "command": "evaluate", "warnings": list(result.warnings)}
    printed = json.dumps(header | to_json(result), allow_nan=False)
    values: dict[str, Any] = json.loads(printed)
    return values


@pytest.mark.parametrize("name", EVALUATIONS)
def test_json_of_any_evaluation_matches_its_schema(name: str) -> None:
    check(printed_object(EVALUATIONS[name]), "evaluate")


@pytest.mark.parametrize("mean", EXTREMES)
def test_json_writes_null_for_numbers_that_are_not_finite(mean: float) -> None:
    check(printed_object(extreme(mean)), "evaluate")


# ---- schemas
def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the object definitions inside a schema."""
    found = list[dict[str, Any]]()
    if isinstance(value, list):
        for item in value:
            found += objects_in(item)
    elif isinstance(value, dict):
        if "properties" in value and "type" in value:
            found.append(value)
        for item in value.values():
            found += objects_in(item)
    return found


def test_every_command_has_a_schema() -> None:
    assert set(SCHEMAS) == {*COMMANDS, "error"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_valid_without_additional_properties(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    # These schemas are closed where they combine a plan and its result.
    if name not in ("resize", "convert"):
        for definition in objects_in(schema):
            assert definition["additionalProperties"] is False


def test_the_schema_of_evaluations_requires_and_describes_every_property() -> None:
    for definition in objects_in(SCHEMAS["evaluate"]):
        properties = definition["properties"]
        assert set(properties) == set(definition["required"])
        for value in properties.values():
            assert value.get("description")
