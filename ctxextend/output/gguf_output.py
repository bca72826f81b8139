"""The output of a resize of a GGUF file: one file with other metadata."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.checkpoints.atomic_output import atomic_new_file, check_new_file
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.gguf_file import GgufFile
from ctxextend.checkpoints.gguf_header import MAGIC
from ctxextend.checkpoints.gguf_rewrite import plan_gguf_layout, write_gguf
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.output.output import OutputFiles
from ctxextend.output.prepare import compute_tables
from ctxextend.output.record import Hashes, placeholders, resize_recipe_text
from ctxextend.plan.plan import Plan
from ctxextend.progress import Progress


@dataclass(frozen=True)
class GgufOutput:
    """A GGUF file to write, as `Output` is a folder."""

    plan: Plan
    default_folder: Path  # the path of the file, in the current folder

    has_weights: ClassVar = True
    texts: ClassVar[Mapping[str, bytes]] = {}

    @property
    def source(self) -> Checkpoint:
        """The old file."""
        return self.plan.checkpoint

    @property
    def file(self) -> GgufFile:
        """The old file."""
        file = gguf_of(self.source)
        assert file is not None
        return file

    @property
    def values(self) -> dict[str, Any]:
        """The new values of metadata by key."""
        return {edit.key: edit.after for edit in self.plan.edits}

    @cached_property
    def layout(self) -> Layout:
        """The layout in the default folder."""
        return self.layout_in(self.default_folder)

    def layout_in(self, path: Path) -> Layout:
        """Return the layout for a path, to which the recipe states local paths."""
        return self.layout_with(planned_recipe(self.plan, path))

    def layout_with(self, recipe: bytes) -> Layout:
        """Return the layout with a recipe."""
        shapes = dict[str, tuple[int, ...]]()
        for table in self.plan.stored:
            if table.rows_after != table.rows_before:
                shapes[table.name] = (table.rows_after, table.hidden_size)
        return plan_gguf_layout(self.file, self.values, recipe, shapes)

    @property
    def file_sizes(self) -> Mapping[str, int]:
        """The size of the file in bytes, by its name."""
        return {self.default_folder.name: self.layout.size}

    @property
    def bytes_to_write(self) -> int:
        """The size of the file, with `bytes_shareable`, which may not be written."""
        return self.layout.size

    @property
    def bytes_shareable(self) -> int:
        """Bytes in unchanged blocks, which a file system with block cloning does not write."""
        return self.layout.shareable

    @property
    def files(self) -> OutputFiles:
        """The only file, which is rewritten."""
        return OutputFiles(
            rewritten=(self.default_folder.name,), copied=(), edited=(), created=(), omitted={}
        )


def prepare_gguf(plan: Plan) -> GgufOutput:
    """Return the output of a resize of a GGUF file."""
    stem = Path(plan.checkpoint.config_file).stem
    return GgufOutput(plan=plan, default_folder=Path(f"{stem}-{plan.max_len_after}.gguf"))


def planned_recipe(plan: Plan, path: Path) -> bytes:
    """Return the recipe for a path, with placeholders that are as long as the hashes."""
    return _recipe(plan, path.parent, placeholders(plan))


def _recipe(plan: Plan, folder: Path, hashes: Hashes) -> bytes:
    return resize_recipe_text(plan, folder, hashes).encode()


def check_gguf_output(output: GgufOutput, path: Path, *, force: bool) -> None:
    """Check that `write_gguf_output` can write to a path, without writing anything.

    Raises:
        OutputError: It exists, cannot be written or replaced, or there is too little disk space.
    """
    check_new_file(
        path,
        (output.file.path,),
        output.layout_in(path).size,
        force=force,
        is_replaceable=_starts_as_gguf,
    )


def write_gguf_output(
    output: GgufOutput,
    path: Path,
    *,
    force: bool,
    progress: Progress,
    check: Callable[[Path], None],
) -> tuple[int, tuple[str, ...]]:
    """Write a GGUF file to a temporary one and rename it, so that it is complete or absent.

    Args:
        output: What to write.
        path: Where.
        force: Replace an existing GGUF file, once the new one is complete.
        progress: Called with the bytes written since the last call and the total.
        check: Called with the complete temporary file before it is renamed.

    Returns:
        Its size in bytes, and warnings about new rows.

    Raises:
        OutputError: The output exists, cannot be written or replaced, or there is too little disk
            space.
        CheckpointError: The source cannot be read, or changed after it was planned.
    """
    source = output.source
    source.check_unchanged()
    total = output.layout_in(path).size
    with atomic_new_file(
        path, (output.file.path,), total, force=force, is_replaceable=_starts_as_gguf
    ) as staged:
        new = compute_tables(output.plan, source, partial(_recipe, output.plan), path.parent)
        layout = output.layout_with(new.recipe)
        with staged.open("r+b", buffering=0) as opened:
            write_gguf(
                output.file, layout, new.tensor, opened, lambda count: progress(count, total)
            )
        staged.chmod(output.file.path.stat().st_mode & 0o777)
        source.check_unchanged()
        check(staged)
    return layout.size, new.warnings


def _starts_as_gguf(path: Path) -> bool:
    """Whether a file starts as a GGUF file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
