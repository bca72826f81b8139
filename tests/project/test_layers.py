"""Layers of imports between modules, and what commands import."""

import ast
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from ctxextend import resize
from tests.helpers.imports import HEAVY, command, loaded_after
from tests.helpers.repository import PACKAGE

# Each package or module may import only from itself and those before it. A module that has an entry
# is not at that of its package.
LAYERS = [
    "errors",
    "version",
    "notes",
    "progress",
    "json_output",
    "tables",
    "positions/facts",
    "checkpoint",
    "runtimes",
    "recipe_names",
    "kinds",
    "settings",
    "keywords",
    "recipe",
    "provenance",
    "positions",
    "families",
    "limits",
    "opening",
    "limits/edits",
    "plan",
    "serving",
    "plan_notes",
    "card",
    "output",
    "models",
    "text_data",
    "held_out",
    "inspection",
    "conversion",
    "planned",
    "verification",
    "lab/statistics",
    "lab/scores",
    "lab",
    "report/figures",
    "training",
    "report",
    "demo",
    "pipeline",
    "resizing",
    "running",
    "cli",
    "__init__",
    "__main__",
]
# Modules of training/ that check a run before torch is imported, or are only values.
LIGHT_TRAINING = {
    "ctxextend.training.start",
    "ctxextend.training.train_result",
    "ctxextend.training.training_source",
}
# Third-party libraries that each package or module may import; numpy is always allowed.
ALLOWED = {
    "tables": {"ml_dtypes", "torch"},
    "families": set(),
    "families/rotary_class.py": {"transformers"},  # only for types without an entry
    "checkpoint": {"gguf", "huggingface_hub", "ml_dtypes", "safetensors", "torch"},
    "recipe": {"yaml"},
    "card": {"yaml"},
    "output": {"ml_dtypes"},
    "models": {"ml_dtypes", "torch", "transformers"},
    "lab": {"tokenizers", "torch", "transformers"},
    "lab/measures": set(),
    "text_data": {"datasets"},
    "training": {
        "torch",
        "transformers",
        "accelerate",
        "peft",
        "safetensors",
        "sentence_transformers",
        "ml_dtypes",
        "yaml",
        "matplotlib",
    },
    "report": {"jinja2", "markupsafe", "matplotlib"},
    "cli": {"plotext", "rich", "typer"},
    "demo": {"torch"},
}
# They need torch at module level, and are themselves imported inside functions.
IMPORT_TORCH = {
    "checkpoint/pytorch_file.py",
    "checkpoint/nanogpt.py",
}
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def package(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def layer(module: str) -> int:
    """Return the index of a module, or of its package, in `LAYERS`."""
    name = module.removesuffix(".py")
    if name not in LAYERS:
        name = package(module)
    return LAYERS.index(name)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text())


def imports(module: str) -> Iterator[str]:
    """Yield the modules that a module imports when it runs, also inside functions."""
    nodes = list[ast.AST]([tree_of(module)])
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported_modules(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        else:
            nodes += ast.iter_child_nodes(node)


def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "imports are absolute"
    return [str(node.module)]


# They create positions of a kind.
CREATE_POSITIONS = {
    "families/registry.py",
    "families/rotary_class.py",
    "families/gguf_family.py",
    "opening/named_table.py",
}
KINDS = {"Rows", "Sinusoids", "Rotary", "Unlimited", "TableReport", "SchemeReport"}
# Their scheme is the one that a conversion is to give, not that of positions.
OF_A_CONVERSION = {"convert", "given", "self", "settings", "twin"}


def library(name: str) -> str:
    """Return the top-level package of an imported module."""
    return name.partition(".")[0]


def test_modules_import_only_from_lower_layers() -> None:
    found: list[str] = []
    for module in MODULES:
        for name in imports(module):
            if not name.startswith("ctxextend."):
                continue
            other = name.removeprefix("ctxextend.").replace(".", "/")
            if package(other) != package(module) and layer(other) > layer(module):
                found.append(f"{module} imports {name}")
    assert found == []


def test_modules_import_only_allowed_libraries() -> None:
    always = {"ctxextend", "numpy", *sys.stdlib_module_names}
    found: list[str] = []
    for module in MODULES:
        own = (module, module.rpartition("/")[0], package(module))
        allowed = always | next((ALLOWED[name] for name in own if name in ALLOWED), set())
        for name in imports(module):
            if library(name) not in allowed:
                found.append(f"{module} imports {name}")
    assert found == []


def asks_for_a_kind(node: ast.AST) -> bool:
    """Whether code asks which kind of positions it has."""
    match node:
        case ast.Call(func=ast.Name("isinstance"), args=[_, kinds]):
            return bool(KINDS & {getattr(item, "id", "") for item in ast.walk(kinds)})
        case ast.Attribute(attr="has_rows" | "rope"):
            return True
        case ast.Compare(left=ast.Attribute(owner, "scheme")):
            return ast.unparse(owner).rpartition(".")[2] not in OF_A_CONVERSION
    return False


def test_only_positions_ask_for_their_kind() -> None:
    found: list[str] = []
    for module in MODULES:
        if package(module) != "positions" and module not in CREATE_POSITIONS:
            asked = [node for node in ast.walk(tree_of(module)) if asks_for_a_kind(node)]
            found += [f"{module}: {ast.unparse(node)}" for node in asked]
    assert found == []


# What names a format, or a class of one.
OF_FORMATS = re.compile(r"is_gguf|Gguf|gguf_|GGUF_|[Nn]ano_?gpt|NANOGPT|PytorchFile")
# They write or compare a format, which checkpoints of it name.
KNOW_FORMATS = {
    "families/gguf_family.py",
    "families/registry.py",
    "verification/gguf_metadata.py",
}


def test_only_checkpoints_know_their_format() -> None:
    found: list[str] = []
    for module in MODULES:
        if package(module) == "checkpoint" or module in KNOW_FORMATS:
            continue
        for node in ast.walk(tree_of(module)):
            name = getattr(node, "id", None) or getattr(node, "attr", None) or ""
            if isinstance(name, str) and OF_FORMATS.search(name):
                found.append(f"{module}: {name}")
    assert found == []


def test_modules_import_heavy_libraries_only_inside_functions() -> None:
    found: list[str] = []
    for module in MODULES:
        if package(module) == "training" or module in IMPORT_TORCH:
            continue
        for node in tree_of(module).body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for name in imported_modules(node):
                is_heavy = library(name) in HEAVY or "ctxextend.training" in name
                if is_heavy and name not in LIGHT_TRAINING:
                    found.append(f"{module} imports {name}")
    assert found == []


@pytest.mark.parametrize("name", sorted(LIGHT_TRAINING))
def test_light_modules_of_training_import_no_heavy_library(name: str) -> None:
    assert not loaded_after(f"import {name}") & (HEAVY - {"numpy"})


def dotted_name(module: str) -> str:
    return f"ctxextend.{module.removesuffix('.py').replace('/', '.')}"


def test_imports_have_no_cycles() -> None:
    modules = {dotted_name(module): module for module in MODULES}
    graph = {name: set(imports(module)) & set(modules) for name, module in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {error.args[1]}") from None


def cpu_seconds(command: list[str]) -> float:
    """Return the CPU time of a command, which other processes hardly affect."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    return user + system


# Modules that help screens, and commands on local files, must not load.
SCREEN = {*HEAVY, "numpy", "ml_dtypes", "huggingface_hub", "rich"}
FILES = {*HEAVY, "huggingface_hub"}


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import ctxextend", {*HEAVY, "numpy", "yaml", "typer", "rich", "huggingface_hub"}),
        (command("--help"), SCREEN),
        (command("resize", "--help"), SCREEN),
        (command("--version"), SCREEN),
        (command("methods"), HEAVY),
        (command("resize", "tiny-gpt2", "--to", "512", "--dry-run"), FILES),
        (
            command(
                "resize", "tiny-gpt2", "--to", "512", "--method", "linear", "-o", "out", "--json"
            ),
            FILES,
        ),
        (command("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "512", "--verify"), FILES),
        (command("verify", "tiny-gpt2-512", "--base", "tiny-gpt2"), FILES),
        (command("inspect", "tiny-gpt2"), FILES),
    ],
)
def test_commands_do_not_import_unused_libraries(code: str, unused: set[str]) -> None:
    if "'verify'" in code:
        resize("tiny-gpt2", to=512)
    loaded = loaded_after(code)
    assert "ctxextend" in loaded
    assert not loaded & unused


@pytest.mark.parametrize(
    "arguments",
    [
        "resize ti",
        "families ro",
        "demo -o x",
        "resize --method ",
        "convert --scheme ",
        "run gp",
        "recipes gp",
        "flags --for ",
    ],
)
def test_completion_imports_neither_numpy_nor_torch(arguments: str) -> None:
    variables = {
        "_CTXEXTEND_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ctxextend {arguments}",
        "COMP_CWORD": "2",
    }
    loaded = loaded_after(f"import os; os.environ |= {variables}\n{command()}")
    assert "ctxextend" in loaded
    assert not loaded & SCREEN


def test_help_starts_almost_as_fast_as_its_libraries() -> None:
    help_screen = [sys.executable, "-m", "ctxextend", "--help"]
    libraries = [sys.executable, "-c", "import typer, rich.console"]
    help_minimum = math.inf
    libraries_minimum = math.inf
    for _ in range(5):
        for _ in range(5):
            # Alternate, so that load affects both.
            help_minimum = min(help_minimum, cpu_seconds(help_screen))
            libraries_minimum = min(libraries_minimum, cpu_seconds(libraries))
        if help_minimum <= libraries_minimum + 0.1:
            return
    raise AssertionError(
        f"--help takes {help_minimum:.2f} s, its libraries {libraries_minimum:.2f} s"
    )
