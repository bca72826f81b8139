"""Read classes of the installed transformers from their source, without importing them.

Importing a config class takes seconds, since transformers imports torch with it; reading its source
takes milliseconds, and runs no code.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

# The tables of `models/auto`, such as ("llama", "LlamaConfig"), and of config classes in the folder
# of another type, such as ("aria_text", "aria"). Some entries are of the form "mlcd": "MLCDConfig".
CLASS_ENTRY = re.compile(r'"(?![A-Z_]+")([^"]+)"[,:]\s*"(\w+Config)"')
FOLDER_ENTRY = re.compile(r'"([^"]+)"[,:]\s*"([a-z0-9_]+)"')
MODEL_ENTRY = re.compile(r'\(\s*"([^"]+)",\s*\(?\s*"(\w+)"')
LINE_AT_TOP = re.compile(r"^[^\s#)]|\Z", re.M)
CONFIG_TABLES = ("auto_mappings.py", "configuration_auto.py")


class UnclearSourceError(Exception):
    """A class that no rule about its source covers, with the reason as a clause."""


@dataclass(frozen=True)
class ConfigClass:
    """The config class of a model type, as its source states it."""

    name: str
    model_type: str
    folder: Path  # of the model type, or of the model that it is a part of
    node: ast.ClassDef

    @cached_property
    def fields(self) -> Mapping[str, ast.expr | None]:
        """Its fields with their defaults: those of a dataclass, or else the constructor's.

        Configs became dataclasses in the course of transformers 5.
        """
        found = dict[str, ast.expr | None]()
        for statement in self.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = statement.value
        constructor = self.functions.get("__init__")
        if constructor is not None:
            arguments = constructor.args
            positional = arguments.args[-len(arguments.defaults) :] if arguments.defaults else []
            found |= {
                argument.arg: default
                for argument, default in zip(positional, arguments.defaults, strict=True)
            }
        return found

    @cached_property
    def attributes(self) -> Mapping[str, ast.expr]:
        """The values of its class attributes without an annotation, such as ``default_theta``."""
        found = dict[str, ast.expr]()
        for statement in self.node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found[statement.targets[0].id] = statement.value
        return found

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        """Its functions by name."""
        return functions_of(self.node)

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of its base classes."""
        return tuple(ast.unparse(base) for base in self.node.bases)


def functions_of(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return the functions of a class by name."""
    return {
        statement.name: statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
    }


@cache
def models_folder() -> Path | None:
    """Return the folder of the installed transformers with a folder per model.

    None if transformers is not installed as files.
    """
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0], "models")


def _read(path: Path) -> str:
    """Return the text of a source file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


@cache
def installed_types() -> Mapping[str, str]:
    """Return the model types of the installed transformers, each with its config class."""
    folder = models_folder()
    if folder is None:
        return {}
    return dict(CLASS_ENTRY.findall(_config_tables(folder)))


@cache
def _config_tables(models: Path) -> str:
    """Return the source of the tables of config classes."""
    return "\n".join(_read(models / "auto" / name) for name in CONFIG_TABLES)


@cache
def _folders(models: Path) -> Mapping[str, str]:
    """Return the folders of model types that have another name than their type."""
    return dict(FOLDER_ENTRY.findall(_config_tables(models)))


@cache
def _model_classes(models: Path) -> Mapping[str, str]:
    """Return the base model class of each model type that has one."""
    classes = dict[str, str]()
    for model_type, name in MODEL_ENTRY.findall(_read(models / "auto" / "modeling_auto.py")):
        classes.setdefault(model_type, name)
    return classes


def config_class(model_type: str) -> ConfigClass | None:
    """Return the config class of a model type; None if the installed transformers has none."""
    models = models_folder()
    name = installed_types().get(model_type)
    if models is None or name is None:
        return None
    folder = models / _folders(models).get(model_type, model_type.replace("-", "_"))
    return find_config_class(name, folder, model_type)


def find_config_class(name: str, folder: Path, model_type: str) -> ConfigClass | None:
    """Return a config class in the folder of a model; None if it is not there."""
    for path in sorted(folder.glob("configuration_*.py")):
        node = _find_class(_read(path), name)
        if node is not None:
            return ConfigClass(name=name, model_type=model_type, folder=folder, node=node)
    return None


def _find_class(source: str, name: str) -> ast.ClassDef | None:
    """Return a class at the top level of a source."""
    match = re.search(rf"^class {name}\b", source, re.M)
    return None if match is None else _class_at(source, match.start())


def _class_at(source: str, start: int) -> ast.ClassDef:
    """Return the class that starts at an offset of a source.

    Parsing only its text is several times faster than parsing the whole file. A text that starts
    in the first column may be in the middle of a class, in a long string.

    Raises:
        UnclearSourceError: It has syntax that this version of Python does not know.
    """
    for end in LINE_AT_TOP.finditer(source, start + 1):
        try:
            statement = ast.parse(source[start : end.start()]).body[0]
        except SyntaxError:
            continue
        assert isinstance(statement, ast.ClassDef)
        return statement
    message = f"Python {sys.version.split()[0]} cannot parse it"
    raise UnclearSourceError(f"{source[start:].splitlines()[0]} {message}")


def model_sources(config: ConfigClass) -> Iterator[str]:
    """Yield the source files with the model classes of a config class.

    They are in its folder; a type without classes there has those of another type: EXAONE
    those of Llama.
    """
    found = False
    for path in sorted(config.folder.glob("modeling_*.py")):
        found = True
        yield _read(path)
    models = models_folder()
    if found or models is None:
        return
    name = _model_classes(models).get(config.model_type)
    if name is None:
        return
    definition = re.compile(rf"^class {name}\(", re.M)
    for path in sorted(models.glob("*/modeling_*.py")):
        source = _read(path)
        if definition.search(source):
            yield source


def classes_with(function: str, sources: Iterable[str]) -> Iterator[ast.ClassDef]:
    """Yield the classes at the top level of sources that define a function."""
    definition = re.compile(rf"^    def {function}\(", re.M)
    for source in sources:
        starts = [match.start() for match in re.finditer(r"^class ", source, re.M)]
        for found in definition.finditer(source):
            before = [start for start in starts if start < found.start()]
            if before:
                yield _class_at(source, before[-1])
