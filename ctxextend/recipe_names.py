"""The recipes that ship with the package: a light module, which shell completion imports."""

from pathlib import Path

from ctxextend.shipped import shipped_folder


def builtin_recipes() -> dict[str, Path]:
    """Return the recipes that ship with the package: file by name."""
    return {path.stem: path for path in sorted(shipped_folder("recipes").glob("*.yaml"))}
