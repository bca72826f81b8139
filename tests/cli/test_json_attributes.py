"""Every key of --json is an attribute of the result in Python by the same name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.json_output import Result, to_json
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.trainings import make_encoder, make_source, write_book

COMMON = ("schema_version", "command")  # keys of every command
LOSSES = "--data book.txt --tokens 512 --measure position --measure context"


def check_names(value: Any, result: Any, where: str) -> None:
    """Assert that every key of a JSON value is an attribute of a result, or a key of a mapping."""
    if isinstance(value, dict) and isinstance(result, Mapping):
        own = {str(key): item for key, item in result.items()}
        for key, item in value.items():
            check_names(item, own[key], f"{where}.{key}")
    elif isinstance(value, dict):
        for key, item in value.items():
            assert hasattr(result, key), f"{where}.{key}"
            check_names(item, getattr(result, key), f"{where}.{key}")
    elif isinstance(value, list):  # which may be the first items only
        assert len(value) <= len(result), where
        for index, item in enumerate(value):
            check_names(item, result[index], f"{where}[{index}]")
    else:
        assert not is_dataclass(result), where


def check_values(value: Any, result: Any, where: str) -> None:
    """Assert that every key of a JSON object has the value of the attribute."""
    for key, item in value.items():
        own = getattr(result, key)
        assert to_json(own) == item, f"{where}.{key}"
        if isinstance(item, dict) and is_dataclass(own):
            check_values(item, own, f"{where}.{key}")


@pytest.fixture
def _checkpoints(_empty_folder: None) -> None:
    """Save a language model, a resized one, an encoder with a search set, and a text."""
    make_source(Path("gpt"), "gpt2")
    ctxextend.resize("gpt", 32, method="linear", output="gpt-32")
    make_encoder(Path("encoder"))
    ctxextend.resize("root", 32, method="linear", output="root-32")
    make_rotary("llama", "llama", max_position_embeddings=16)
    write_book()
    search = Path("search")
    search.mkdir()
    lines = [json.dumps({"_id": str(number), "text": f"w{number} w2 w3"}) for number in range(4)]
    for name in ("corpus", "queries"):
        (search / f"{name}.jsonl").write_text("\n".join(lines))
    (search / "qrels.tsv").write_text("\n".join(f"{number}\t{number}\t1" for number in range(4)))


def printed(command: str) -> dict[str, Any]:
    done = CliRunner().invoke(build_app(), [*command.split(), "--json"])
    assert done.exit_code == 0, done.output
    values: dict[str, Any] = json.loads(done.stdout)
    return {key: value for key, value in values.items() if key not in COMMON}


SHORT: dict[str, Any] = {"tokens": 512, "measure": ("position", "context")}
RESULTS: dict[str, Callable[[], Result]] = {
    "resize gpt --to 32 --method linear -o out": lambda: ctxextend.resize(
        "gpt", 32, method="linear", output="again"
    ),
    "convert gpt --scheme rotary --to 32 -o out": lambda: ctxextend.convert(
        "gpt", "rotary", 32, output="again"
    ),
    f"evaluate gpt-32 {LOSSES}": lambda: ctxextend.evaluate("gpt-32", "book.txt", **SHORT),
    "evaluate root-32 --search search": lambda: ctxextend.evaluate("root-32", search="search"),
    "verify gpt-32": lambda: ctxextend.verify("gpt-32"),
    "train gpt-32 --data book.txt --steps 2 -o trained": lambda: ctxextend.train(
        "gpt-32", "book.txt", 2, output="again"
    ),
    "train gpt-32 --data book.txt --steps 2 --dry-run": lambda: ctxextend.plan_training(
        "gpt-32", "book.txt", 2
    ),
}


@pytest.mark.parametrize("command", RESULTS)
@pytest.mark.usefixtures("_checkpoints")
def test_every_key_of_json_is_an_attribute_of_the_result(command: str) -> None:
    values = printed(command)
    result = RESULTS[command]()
    check_names(values, result, command)
    assert values.keys() == result.to_json().keys()
    check_values(result.to_json(), result, command)


@pytest.mark.usefixtures("_checkpoints")
def test_every_key_of_inspect_json_is_an_attribute_of_an_inspection() -> None:
    models = ["gpt-32", "root-32", "llama"]
    values = printed(f"inspect {' '.join(models)}")
    for model, source in zip(values["models"], models, strict=True):
        result = ctxextend.inspect(source)
        check_names(model, result, source)
        check_values(result.to_json(), result, source)


def test_every_key_of_methods_and_families_is_an_attribute() -> None:
    check_names(printed("methods")["methods"][:5], ctxextend.list_methods(), "methods")
    families = printed("families bart llama")["families"]
    check_names(families, ctxextend.list_families(["bart", "llama"]), "families")
