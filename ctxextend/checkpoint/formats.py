"""What is read in another way from a file of another format: the checkpoint, and its recipe.

Imports are in functions, since recipes are read without numpy.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.checkpoint.filenames import RECIPE_FILE, is_gguf
from ctxextend.checkpoint.json_edit import read_text
from ctxextend.checkpoint.source import ConfigCheck, Source, has_file

if TYPE_CHECKING:
    from ctxextend.checkpoint.folder import Checkpoint


def open_any(
    source: Source, variant: str | None = None, check: ConfigCheck = lambda config: None
) -> "Checkpoint":
    """Open a folder, a weights file in one, or a file that is a whole checkpoint.

    Args:
        source, variant, check: As in `folder.open_checkpoint`.

    Raises:
        CheckpointError: A file is missing, malformed or unreadable.
        UnsupportedModelError: The architecture of the file is not known.
    """
    if is_gguf(source.file):
        from ctxextend.checkpoint.gguf_checkpoint import open_gguf_checkpoint

        return open_gguf_checkpoint(source)
    from ctxextend.checkpoint.folder import open_checkpoint

    return open_checkpoint(source, variant, check)


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
