"""The output of a resize of a GGUF file: one file with other metadata."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.checkpoint.atomic_output import atomic_new_file, check_new_file
from ctxextend.checkpoint.filenames import GGUF_SUFFIX, is_gguf
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.gguf_checkpoint import GgufFile, gguf_file
from ctxextend.checkpoint.gguf_header import MAGIC
from ctxextend.checkpoint.gguf_rewrite import plan_gguf_layout, write_gguf
from ctxextend.checkpoint.rewrite import Layout
from ctxextend.errors import OutputError
from ctxextend.output import Filled, OutputFiles, compute_tensors
from ctxextend.plan import Plan
from ctxextend.progress import Progress
from ctxextend.record import output_record, recipe_bytes


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
        return gguf_file(self.source)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The values of the recipe, with placeholders that are as long as the hashes."""
        return output_record(self.plan)

    @cached_property
    def layout(self) -> Layout:
        """The layout in the default folder."""
        return self.layout_in(self.default_folder)

    def layout_in(self, path: Path) -> Layout:
        """Return the layout for a path, to which the recipe states local paths."""
        return self.layout_with(recipe_bytes(self.record, path.parent))

    def layout_with(self, recipe: bytes) -> Layout:
        """Return the layout with a recipe."""
        shapes = dict[str, tuple[int, ...]]()
        for table in self.plan.stored:
            if table.rows_after != table.rows_before:
                shapes[table.name] = (table.rows_after, table.hidden_size)
        values = {edit.key: edit.after for edit in self.plan.edits}
        return plan_gguf_layout(self.file, values, recipe, shapes)

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
        """The only file, by its default name."""
        return self.files_in(self.default_folder)

    def files_in(self, path: Path) -> OutputFiles:
        """Return the only file, which is rewritten, by its name in a path."""
        return OutputFiles(
            rewritten=(path.name,), copied=(), linked={}, edited=(), created=(), omitted={}
        )

    def check_path(self, path: Path, *, force: bool) -> None:
        """Check that a file can be written, without writing anything.

        Raises:
            OutputError: It is not named as a GGUF file, exists, cannot be written or replaced, or
                there is too little disk space.
        """
        _check_name(path, self.default_folder.name)
        check_new_file(
            path,
            (self.file.path,),
            self.layout_in(path).size,
            force=force,
            is_replaceable=_starts_as_gguf,
        )

    def stage(self, path: Path, *, force: bool) -> AbstractContextManager[Path]:
        """Yield a temporary file, which becomes the output if nothing fails.

        Raises:
            OutputError: As `check_path`.
        """
        _check_name(path, self.default_folder.name)
        return atomic_new_file(
            path,
            (self.file.path,),
            self.layout_in(path).size,
            force=force,
            is_replaceable=_starts_as_gguf,
        )

    def fill(self, staged: Path, path: Path, progress: Progress) -> Filled:
        """Write the file to a temporary one.

        Args:
            staged: The temporary file.
            path: The output, to whose folder local paths in the recipe are relative.
            progress: Called with the bytes written since the last call and the total.

        Raises:
            CheckpointError: The source cannot be read, or changed after it was planned.
            ResizeError: A new table does not fit in memory.
        """
        new = compute_tensors(self.plan, self.record, path.parent)
        layout = self.layout_with(new.recipe)
        with staged.open("r+b", buffering=0) as opened:
            write_gguf(
                self.file, layout, new.tensor, opened, lambda count: progress(count, layout.size)
            )
        staged.chmod(self.file.path.stat().st_mode & 0o777)
        self.source.check_unchanged()
        return Filled(size=layout.size, warnings=new.warnings)


def prepare_gguf(plan: Plan) -> GgufOutput:
    """Return the output of a resize of a GGUF file."""
    stem = Path(plan.checkpoint.config_file).stem
    return GgufOutput(plan=plan, default_folder=Path(f"{stem}-{plan.max_len_after}.gguf"))


def _check_name(path: Path, default_name: str) -> None:
    """Raise OutputError unless a file is named as programs that read GGUF files expect."""
    if is_gguf(path):
        return
    if path.is_dir():
        message = f"The output {path} is a folder, and a GGUF file is resized to a file."
        raise OutputError(message, f"Use --output {path / default_name}.")
    raise OutputError(
        f"The output {path} does not end in {GGUF_SUFFIX}, by which GGUF files are recognised.",
        f"Use --output {path}{GGUF_SUFFIX} or, for a file in a folder of this name, --output "
        f"{path / default_name}.",
    )


def _starts_as_gguf(path: Path) -> bool:
    """Whether a file starts as a GGUF file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
