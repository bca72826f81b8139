"""Text that comes with Python: its documentation, for a comparison without other text."""

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

# The bundled model was not trained on documents whose SHA-256 starts with a byte below this; see
# its model card.
HELD_OUT_BELOW = 256 / 20
MIN_CHARACTERS = 40
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def default_documents(kind: str) -> list[str]:
    """Return text that the bundled model was not trained on; for other models, long texts first.

    `kind` is that of the source of the model.
    """
    if kind == "bundled":
        return [text for text in python_documents() if is_held_out(text)]
    return sorted(map("\n\n".join, _python_texts()), key=len, reverse=True)


def python_documents() -> list[str]:
    """Return what the bundled model was trained or evaluated on, as far as this Python has it."""
    documents = dict.fromkeys(text for texts in _python_texts() for text in texts)
    return [text for text in documents if len(text) >= MIN_CHARACTERS]


def is_held_out(document: str) -> bool:
    """Whether the bundled model was not trained on a document."""
    return hashlib.sha256(document.encode()).digest()[0] < HELD_OUT_BELOW


def _python_texts() -> Iterator[list[str]]:
    """Yield the topics of `help`, and the docstrings of each module of the standard library."""
    for topic in topics.values():
        yield [topic]
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")):  # packages would take too long
        texts = []
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, DOCUMENTED):
                texts.append(inspect.cleandoc(ast.get_docstring(node) or ""))
        yield texts
