"""The names of methods, for shell completion, which cannot wait for the import of NumPy."""

import ast
from pathlib import Path


def table_method_names() -> list[str]:
    """Return the names of the methods of position tables, in the order of all listings."""
    return _decorated_functions("methods.py")


def rotary_method_names() -> list[str]:
    """Return the names of the methods of rotary positions, in the order of all listings."""
    return _decorated_functions("rotary_methods.py")


def _decorated_functions(module: str) -> list[str]:
    """Return the names of the decorated functions of a module, which are its methods."""
    code = ast.parse(Path(__file__).with_name(module).read_text("utf-8"))
    functions = [node for node in code.body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if function.decorator_list]
