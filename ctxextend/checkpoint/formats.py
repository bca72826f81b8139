"""The recipe that a file of any format has.

An import is in a function, since recipes are read without numpy.
"""

from pathlib import Path

from ctxextend.checkpoint.filenames import RECIPE_FILE, is_gguf
from ctxextend.checkpoint.json_edit import read_text
from ctxextend.checkpoint.source import Source, has_file


def recipe_text(path: Path) -> str | None:
    """Return the text of a recipe file, or of the recipe in a weights file; None if it has none.

    Raises:
        OSError: The file cannot be read.
        CheckpointError: It is a malformed weights file.
    """
    if not is_gguf(path) or not path.is_file():
        return path.read_text(encoding="utf-8-sig")
    from ctxextend.checkpoint.gguf_header import RECIPE_KEY, open_gguf

    recipe = open_gguf(path).values.get(RECIPE_KEY)
    if recipe is None:
        return None
    return str(recipe)


def source_recipe(source: Source) -> str | None:
    """Return the text of the recipe of a checkpoint; None if it has none.

    Raises:
        CheckpointError: A file cannot be read, or is malformed.
    """
    if is_gguf(source.file):
        return recipe_text(source.folder / str(source.file))
    path = source.folder / RECIPE_FILE
    if not has_file(source, path):
        return None
    return read_text(path)
