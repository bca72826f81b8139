"""Write ``ctxextend/__init__.pyi``, by which editors and type checkers know every keyword of the library.

Run it after a setting changed: ``python -m tests.stubs && ruff check --fix ctxextend && ruff format ctxextend``.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import ctxextend

STUB = Path(ctxextend.__file__).with_name("__init__.pyi")
TUPLE = re.compile(r"tuple\[(\w+), \.\.\.\]")
# Settings that hold paths as text take them as paths too.
PATHS = {"base": "str | os.PathLike[str] | None"}
PATHS["eval_data"] = "str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]]"
QUALIFIED = re.compile(r"\b((?:[a-z]\w*\.)+)([A-Z]\w*)")
HEAD = '"""The public names, as editors and type checkers see them; written by `python -m tests.stubs`."""'


def stub() -> str:
    """The stub: functions with all their keyword arguments, and all other names from where they are defined."""
    imports, functions = set[str](), []

    def written(annotation: Any) -> str:
        """An annotation; one value and sequences of any kind are taken where settings hold tuples."""
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        text = TUPLE.sub(r"\1 | collections.abc.Sequence[\1]", text)
        for module, name in QUALIFIED.findall(text):
            imports.add(f"from {module[:-1]} import {name}")
        return QUALIFIED.sub(r"\2", text)

    for name in ctxextend.__all__:
        value = getattr(ctxextend, name)
        if not inspect.isfunction(value):
            module = "ctxextend.version" if name == "__version__" else value.__module__
            imports.add(f"from {module} import {name}")
            continue
        signature = inspect.signature(value)
        texts = list[str]()
        for one in signature.parameters.values():
            if one.kind is one.KEYWORD_ONLY and "*" not in texts:
                texts.append("*")
            default = "" if one.default is one.empty else " = ..." if callable(one.default) else f" = {one.default!r}"
            texts.append(f"{one.name}: {written(PATHS.get(one.name, one.annotation))}{default}")
        summary = str(value.__doc__).splitlines()[0]
        returned = written(signature.return_annotation)
        functions.append(f'def {name}({", ".join(texts)}) -> {returned}:\n    """{summary}"""\n')
    return "\n".join([HEAD, "", *sorted(imports), "", f"__all__ = {sorted(ctxextend.__all__)!r}", "", *functions])


if __name__ == "__main__":
    STUB.write_text(stub())
