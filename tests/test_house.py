"""The shape of the package: how many places a reader has to visit."""

import ast
import sys
import threading
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from inspect import CO_OPTIMIZED, isfunction, signature
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

import ctxextend
from ctxextend import resize
from ctxextend.cli.app import app_of

PACKAGE = Path(__file__).parents[1] / "ctxextend"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def trace(counted: tuple[str, ...], *command: str) -> tuple[list[str], dict[str, int]]:
    """The modules whose functions a command calls, and how often it calls each of some functions."""
    entered, calls = set[str](), Counter[str]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & CO_OPTIMIZED  # neither a module's nor a class's own body
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            entered.add(code.co_filename.removeprefix(f"{PACKAGE}/"))
            calls[code.co_name] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        done = CliRunner().invoke(app_of(), command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert done.exit_code == 0, done.output
    return sorted(entered), {name: calls[name] for name in counted}


OPENING = ("open_checkpoint", "identify_model")


def test_resize_enters_few_modules_and_opens_once() -> None:
    entered, calls = trace(OPENING, "resize", "tiny-gpt2", "--to", "512")
    assert len(entered) <= 32, entered
    assert calls == dict.fromkeys(OPENING, 1)


@pytest.fixture
def book() -> str:
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel, Trainer  # noqa: F401 - slow under a profile

    Path("book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    return "book.txt"


def test_train_enters_few_modules_and_opens_once(book: str) -> None:
    resize("tiny-gpt2", 256, output="longer")
    arguments = ("--data", book, "--steps", "1", "--batch-size", "1")
    entered, calls = trace(OPENING, "train", "longer", *arguments)
    assert len(entered) <= 55, entered
    assert calls == dict.fromkeys(OPENING, 1)


def test_resize_and_train_opens_source_and_output_once(book: str) -> None:
    _, calls = trace(OPENING, "resize", "tiny-gpt2", "--to", "160", "--train", book, "--steps", "1")
    assert all(count <= 2 for count in calls.values()), calls


def test_public_functions_list_their_settings_with_defaults() -> None:
    functions = {name: getattr(ctxextend, name) for name in ctxextend.__all__}
    parameters = {name: signature(value).parameters for name, value in functions.items() if isfunction(value)}
    assert all(one.kind is not one.VAR_KEYWORD for found in parameters.values() for one in found.values())
    assert parameters["resize"]["family"].default is None
    assert parameters["evaluate"]["tokens"].default == 65_536
    assert parameters["train"]["trainable"].default == "positions"
    defaults = {one.name: one.default for one in parameters["plan_resize"].values() if one.default is not one.empty}
    assert ctxextend.plan_resize("tiny-gpt2", 512, **defaults).method == "copy"


def test_no_two_modules_have_one_name() -> None:
    """A file of cli/ is named after its command, as is the module that does its work."""
    names = Counter(module.stem for module in MODULES if module.parts[0] != "cli" and module.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_classes_have_one_name() -> None:
    classes: Counter[str] = Counter()
    for module in MODULES:
        tree = ast.parse((PACKAGE / module).read_text())
        classes.update({node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})
    assert [name for name, count in classes.items() if count > 1] == []


def test_imports_have_no_circle() -> None:
    names = {module: ".".join(["ctxextend", *module.with_suffix("").parts]) for module in MODULES}
    graph: dict[str, set[str]] = {}
    for module, name in names.items():
        nodes = ast.walk(ast.parse((PACKAGE / module).read_text()))
        found = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        graph[name] = found & set(names.values())
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {error.args[1]}") from None
