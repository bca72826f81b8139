"""The names of methods, for shell completion, which cannot wait for the import of NumPy."""

import ast
from pathlib import Path


def table_method_names() -> list[str]:
    """Return the names of the methods of position tables, in the order of all listings."""
    return _registered_functions("methods.py")


def rotary_method_names() -> list[str]:
    """Return the names of the methods of rotary positions, in the order of all listings."""
    return _registered_functions("rotary_methods.py")


def _registered_functions(module: str) -> list[str]:
    """Return the names of the functions that a module registers as methods.

    A decorator does, also as a call: ``method(...)(bands)``.
    """
    code = ast.parse(Path(__file__).with_name(module).read_text("utf-8"))
    names = list[str]()
    for node in code.body:
        match node:
            case ast.FunctionDef(name, decorator_list=[_, *_]):
                names.append(name)
            case ast.Expr(ast.Call(ast.Call(), [ast.Name(name)])):
                names.append(name)
    return names
