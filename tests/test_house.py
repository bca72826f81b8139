"""The shape of the package: how many places a reader has to visit."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ctxextend import resize

PACKAGE = Path(__file__).parents[1] / "ctxextend"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# Runs a command, then prints the modules of which it called a function, and how often it called some functions.
TRACE = """
import sys, threading
from collections import Counter

package, counted, entered, calls = sys.argv[1], sys.argv[2].split(","), set(), Counter()


def profile(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & 1  # CO_OPTIMIZED: neither a module's nor a class's own body
    if event == "call" and is_function and code.co_filename.startswith(package):
        entered.add(code.co_filename.removeprefix(package + "/"))
        calls[code.co_name] += 1


sys.argv = ["ctxextend", *sys.argv[3:]]
threading.setprofile(profile)
sys.setprofile(profile)
from ctxextend.__main__ import main

try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
finally:
    sys.setprofile(None)
print()
print(*sorted(entered))
print(*(calls[name] for name in counted))
"""


def trace(folder: Path, counted: tuple[str, ...], *command: str) -> tuple[list[str], dict[str, int]]:
    """The modules that a command enters, and how often it calls each of some functions."""
    started = [sys.executable, "-c", TRACE, str(PACKAGE), ",".join(counted), *command]
    done = subprocess.run(started, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entered, calls = done.stdout.splitlines()[-2:]
    return entered.split(), dict(zip(counted, map(int, calls.split()), strict=True))


OPENING = ("open_checkpoint", "identify_model")


def test_resize_enters_few_modules_and_opens_once(tmp_path: Path) -> None:
    entered, calls = trace(tmp_path, OPENING, "resize", "tiny-gpt2", "--to", "512")
    assert len(entered) <= 32, entered
    assert calls == dict.fromkeys(OPENING, 1)


@pytest.fixture
def book(tmp_path: Path) -> str:
    (tmp_path / "book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    return "book.txt"


def test_train_enters_few_modules_and_opens_once(tmp_path: Path, book: str) -> None:
    resize("tiny-gpt2", 256, output=tmp_path / "longer")
    arguments = ("--data", book, "--steps", "1", "--batch-size", "1")
    entered, calls = trace(tmp_path, OPENING, "train", "longer", *arguments)
    assert len(entered) <= 55, entered
    assert calls == dict.fromkeys(OPENING, 1)


def test_resize_and_train_opens_source_and_output_once(tmp_path: Path, book: str) -> None:
    _, calls = trace(tmp_path, OPENING, "resize", "tiny-gpt2", "--to", "160", "--train", book, "--steps", "1")
    assert all(count <= 2 for count in calls.values()), calls


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
