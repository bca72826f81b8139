"""Every command's --json, held to its schema in tests/schemas."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from typer.testing import CliRunner

from ctxextend import resize
from ctxextend.cli.app import COMMANDS, app_of

SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "schemas").glob("*.json")}
REGISTRY: Registry[Any] = Registry().with_resource("resize.json", Resource.from_contents(SCHEMAS["resize"]))

TYPED = [
    "resize tiny-gpt2 --to 512",
    "resize tiny-gpt2 --to 512 --method bands --sigma 6 --repeat 20:90 --verify -o bands",
    "resize tiny-gpt2 --to 64 --dry-run",
    "resize tiny-gpt2 --to 256 --method bands --calibrate texts.jsonl -o calibrated --dry-run",
    "resize tiny-gpt2 --to 256 --train texts.jsonl --steps 1 --seq-len 64 -o trained",
    "train tiny-gpt2-256 --data texts.jsonl --steps 1 --seq-len 64 -o trained-again",
    "inspect tiny-gpt2 tiny-gpt2-256",
    "inspect tiny-gpt2 --rows 120:130",
    "verify tiny-gpt2 tiny-gpt2-256",
    "evaluate tiny-gpt2-256 --data texts.jsonl --tokens 512 --measure position context",
    "compare tiny-gpt2 --to 256 --data texts.jsonl --methods copy,linear --tokens 512 --measure position",
    "run tiny-gpt2-256/ctxextend.yaml --output again",
    "run tiny-gpt2-256/ctxextend.yaml --dry-run",
    "run evaluate.yaml",
    "families",
    "families bart roberta",
    "methods",
    pytest.param("demo", marks=pytest.mark.slow),
]
REFUSED = {
    "resize nothing-here --to 512": 1,
    "resize tiny-gpt2": 2,
    "train tiny-gpt2 --data no-such.txt --steps 1": 1,
    "verify tiny-gpt2 nothing-here": 1,
    "compare tiny-gpt2 --to 256 --data no-such.txt": 1,
    "run no-such.yaml": 1,
    "families llama": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    resize("tiny-gpt2", to=256, output=folder / "tiny-gpt2-256")
    text = (Path(__file__).parents[1] / "README.md").read_text()
    documents = [text[start : start + 1500] for start in range(0, 36_000, 1500)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": document}) for document in documents))
    evaluate = "  data: [texts.jsonl]\n  tokens: 512\n  measure: [position]\n"
    (folder / "evaluate.yaml").write_text(f"source: tiny-gpt2\nevaluate:\n{evaluate}")
    return folder


@pytest.fixture(autouse=True)
def current(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def printed(typed: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app_of(), [*typed.split(), "--json", *["--quiet"] * typed.startswith("res")])
    return done.exit_code, json.loads(done.stdout)


def check(value: Any, schema: str) -> None:
    Draft202012Validator(SCHEMAS[schema], registry=REGISTRY).validate(value)


@pytest.mark.parametrize("typed", TYPED)
def test_json_of_a_command_keeps_its_schema(typed: str) -> None:
    code, value = printed(typed)
    assert code == 0
    check(value, typed.split()[0])


@pytest.mark.parametrize("typed", REFUSED)
def test_json_of_an_error_keeps_its_schema(typed: str) -> None:
    code, value = printed(typed)
    assert code == REFUSED[typed]
    check(value, "error")
    assert (value["error"]["type"] == "UsageError") == (code == 2)


def test_every_command_has_a_schema() -> None:
    assert set(SCHEMAS) == {*COMMANDS, "error"}
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
