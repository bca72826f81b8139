"""The content of an output, and the one function that writes it.

Weights are streamed, and unchanged bytes stay aligned: reflinks need equal offsets modulo the block
size. So the header is padded with spaces until unchanged tensors are aligned as before, modulo
4,096 bytes. A new table whose size does not change by whole blocks is moved to the end.
"""

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.atomic_output import atomic_output, check_output
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.copy import (
    CHUNK,
    DISK_BLOCK,
    OnWrite,
    copy_range,
    open_source,
    write_all,
)
from ctxextend.checkpoint.filenames import RECIPE_FILE, SAFETENSORS
from ctxextend.checkpoint.safetensors_file import BITS, MAX_HEADER_BYTES, METADATA, TensorFile
from ctxextend.errors import CheckpointError
from ctxextend.progress import Progress, no_progress

if TYPE_CHECKING:
    from ctxextend.checkpoint.links import Link

# Up to this size, start write-back with each write: otherwise the disk idles until the final sync.
# The kernel starts it for larger outputs, where the calls cost more than they save.
EARLY_BYTES = 1 << 30


class TensorRange(NamedTuple):
    """A byte range of the new file: one tensor, or unchanged ones that follow in the old file."""

    name: str  # of the first tensor
    size: int  # bytes of all its tensors, and of zeros after a new one
    offset: int | None  # of these bytes in the old file; None if they are new or must be converted
    is_new: bool


class Layout(NamedTuple):
    """The layout of a new file."""

    header: bytes  # its length, JSON and padding
    ranges: tuple[TensorRange, ...]  # after the header, in order
    tensor_bytes: int  # of all ranges

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + self.tensor_bytes


def plan_layouts(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, Layout]:
    """Return the layout of every weights file that changes or is renamed, by its new name.

    Args:
        checkpoint: The source.
        shapes: Those of changed tensors, by name.
        dropped: Names of tensors to omit.
        dtypes: Those of changed tensors, in safetensors' spelling, by name; else they stay.

    Raises:
        CheckpointError: A new header is too long.
    """
    layouts = dict[str, Layout]()
    if checkpoint.file_suffix:
        return layouts
    for name, file in checkpoint.weights.files.items():
        new = {tensor: shape for tensor, shape in shapes.items() if tensor in file.entries}
        is_computed = any(file.offset(tensor) is None for tensor in file.entries)
        is_renamed = any(stored != tensor for stored, tensor in file.names.items())
        is_renamed = is_renamed or name != checkpoint.relative(file)
        drops = any(tensor in file.entries for tensor in dropped)
        if new or is_computed or is_renamed or drops:
            layouts[name] = plan_layout(file, new, dropped, dtypes or {})
    return layouts


def plan_layout(
    file: TensorFile,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str],
) -> Layout:
    """Return the layout of one file that contains all tensors of `shapes`; see `plan_layouts`.

    Raises:
        CheckpointError: The new header is too long.
    """
    entries = [entry for name, entry in file.entries.items() if name not in dropped]
    sizes = {entry.name: entry.size for entry in entries}
    for name, shape in shapes.items():
        dtype = dtypes.get(name, file.entries[name].dtype)
        sizes[name] = math.prod(shape) * BITS[dtype] // 8
    moved = {name for name in shapes if (sizes[name] - file.entries[name].size) % DISK_BLOCK}
    entries.sort(key=lambda entry: (entry.name in moved, entry.start, entry.end))
    ranges = list[TensorRange]()
    described = dict[str, Any]()
    shifts = Counter[int]()  # bytes of unchanged tensors, by their shift within a block
    position = 0
    for entry in entries:
        name = entry.name
        size = sizes[name]
        offset = None if name in shapes else file.offset(name)
        last = ranges[-1] if ranges else None
        if last and last.offset is not None and last.offset + last.size == offset:
            # It continues the last range in the old file.
            ranges[-1] = last._replace(size=last.size + size)
        else:
            ranges.append(TensorRange(name, size, offset, is_new=name in shapes))
        if offset is not None:
            shifts[(offset - position) % DISK_BLOCK] += size
        described[name] = {
            **file.header[name],
            "dtype": dtypes.get(name, entry.dtype),
            "shape": shapes.get(name, entry.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    shift = 0
    if shifts:
        [(shift, _)] = shifts.most_common(1)
    header = dict[str, Any]()
    for name, value in file.header.items():
        if name == METADATA:
            header[name] = value
        elif name in described:
            header[name] = described[name]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * ((shift - 8 - len(text)) % DISK_BLOCK)
    if len(text) > MAX_HEADER_BYTES:
        header_size = f"the new header of {len(text):,} bytes"
        message = f"{file.path}: {header_size} exceeds the limit of {MAX_HEADER_BYTES:,}."
        raise CheckpointError(message, "Split the checkpoint into shards.")
    return Layout(len(text).to_bytes(8, "little") + text, tuple(ranges), position)


def write_layout(
    file: TensorFile,
    source: FileIO,
    layout: Layout,
    tensor_of: Callable[[str], NDArray[Any]],
    output: BinaryIO,
    on_write: OnWrite,
) -> None:
    """Write a header and tensors to an open file.

    Args:
        file: The old file.
        source: The same, open for reading.
        layout: The layout of the new one.
        tensor_of: Is called once per new tensor, by name, and returns it.
        output: The new file, open for writing and empty.
        on_write: Is called after each write.

    Raises:
        CheckpointError: The old file cannot be read.
        OSError: The new file cannot be written.
    """
    write_all(output, memoryview(layout.header))
    on_write(output, len(layout.header))
    for name, size, offset, is_new in layout.ranges:
        if offset is not None:
            copy_range(source, output, offset, size, on_write)
            continue
        tensor = tensor_of(name) if is_new else file.read_bytes(name)
        data = np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data
        for start in range(0, len(data), CHUNK):
            chunk = data[start : start + CHUNK]
            write_all(output, chunk)
            on_write(output, len(chunk))
        write_all(output, memoryview(bytes(size - len(data))))


class NewTensors(NamedTuple):
    """The tensors that an output changes, and the recipe that records them."""

    tensor: Callable[[str], NDArray[Any]]  # by name, called once per tensor
    recipe: bytes  # with the hashes of the tensors
    warnings: tuple[str, ...] = ()  # about values that are not finite


@dataclass(frozen=True)
class OutputFiles:
    """The files of an output: what becomes of each, and why others are omitted."""

    # weights files that change or are renamed, and files that this library generates from others of
    # the source
    rewritten: tuple[str, ...]
    copied: tuple[str, ...]  # files of the source that stay as they are
    # Weights files of the source that stay as they are, and are linked instead of copied, each with
    # the kind of its link: ``hard`` or ``symbolic``.
    linked: Mapping[str, str]
    edited: tuple[str, ...]  # files of the source with another text
    created: tuple[str, ...]  # new files: the recipe and, if the source has none, the model card
    omitted: Mapping[str, str]  # files of the source that the output does not have, with the reason


@dataclass(frozen=True)
class Output:
    """What an output will contain; `write_output` writes it.

    Everything is known before it is written, except the new tensors, and their hashes in the
    recipe: until then, it has placeholders that are as long as the hashes.
    """

    source: Checkpoint  # whose other tensors and files are copied; it names weights as the output
    path: Path  # the folder or the file
    layouts: Mapping[str, Layout]  # of weights files that change or are renamed, by new name
    texts: Mapping[str, bytes]  # edited and created files, by path
    # Returns the new tensors, and the recipe for a folder; called once, while it is written.
    compute: Callable[[Path], NewTensors] = field(repr=False)
    has_weights: bool = True  # False: only edited and created files are written
    # Weights files that are linked instead of copied, by path.
    links: "Mapping[str, Link]" = field(default_factory=dict)
    # Of an output that is one file: its layout with a recipe, which it contains.
    layout_of: Callable[[bytes], Layout] | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is one file, and not a folder."""
        return self.layout_of is not None

    def at(self, path: str | os.PathLike[str] | None) -> "Output":
        """Return the output for a path, in which ``~`` is expanded; itself if it is None."""
        if path is None:
            return self
        expanded = Path(os.path.expanduser(path))  # noqa: PTH111 - never raises
        layouts = self.layouts
        if self.is_file:
            layouts = dict(zip([expanded.name], layouts.values(), strict=True))
        return replace(self, path=expanded, layouts=layouts)

    def with_links(self) -> "Output":
        """Return the output with links to the weights files of the source that stay as they are."""
        # Here, since few outputs have links.
        from ctxextend.checkpoint.links import plan_link

        links: dict[str, Link] = {}
        for name in self.files.copied:
            if name.endswith(SAFETENSORS):
                links[name] = plan_link(self.source.root / name)
        return replace(self, links=links)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes to write of each file: 0 for links."""
        sizes = {name: layout.size for name, layout in self.layouts.items()}
        sizes |= {name: len(text) for name, text in self.texts.items()}
        if not self.is_file:
            for name in self.source.files - sizes.keys():
                sizes[name] = self.source.fingerprints[name].size
        return sizes | dict.fromkeys(self.links, 0)

    @property
    def bytes_to_write(self) -> int:
        """Total size, also of blocks that a file system with block cloning does not write."""
        return sum(self.sizes.values())

    @property
    def files(self) -> OutputFiles:
        """The files of the output.

        A file that is generated from others of the source has its text in `texts`.
        """
        in_source = frozenset[str]() if self.is_file else self.source.files
        others = in_source - self.layouts.keys()  # whose weights, if any, stay
        texts = self.texts.keys()  # of edited and created files
        generated = self.source.generated.keys() & in_source
        return OutputFiles(
            rewritten=(*self.layouts, *sorted(generated)),
            copied=tuple(sorted(others - texts - self.links.keys())),
            linked={name: self.links[name].kind for name in sorted(self.links)},
            edited=tuple(sorted((others & texts) - generated)),
            created=tuple(sorted(texts - in_source)),
            omitted=self.source.omitted,
        )

    def check(self, *, force: bool) -> None:
        """Check that the output can be written, without writing anything.

        Raises:
            OutputError: It exists, cannot be written or replaced, or there is too little disk
                space, or a file cannot be linked there.
        """
        if self.links:
            from ctxextend.checkpoint.links import check_links

            check_links(self.links, self.path)
        check_output(
            self.path,
            self.source.protected,
            self.sizes,
            force=force,
            is_file=self.is_file,
        )


class Written(NamedTuple):
    """An output that was written."""

    size: int  # of all files but links, in bytes
    warnings: tuple[str, ...]  # about the new tensors


def write_output(
    output: Output,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    check: Callable[[Path], None] | None = None,
) -> Written:
    """Write an output; resize, convert and train all do it here.

    Args:
        output: What to write.
        force: Replace an existing checkpoint, once the new one is complete.
        progress: Called with the bytes written since the last call and the total.
        check: Called with the complete temporary folder or file before it is renamed; if it raises,
            nothing is written.

    Raises:
        OutputError: The output exists, cannot be written or replaced, or there is too little disk
            space.
        CheckpointError: The source cannot be read, or changed after it was planned.
        ResizeError: A new table does not fit in memory.
    """
    source = output.source
    sizes = output.sizes
    source.check_unchanged()
    with atomic_output(
        output.path, source.protected, sizes, force=force, is_file=output.is_file
    ) as staged:
        if output.links:
            from ctxextend.checkpoint.links import make_links

            make_links(output.links, staged)  # first, since it may fail
        # Local paths in the recipe are relative to the folder that has it.
        new = output.compute(output.path.parent if output.is_file else output.path)
        layouts = output.layouts
        texts = dict(output.texts)
        files = dict(source.weights.files)
        if output.layout_of is not None:
            layouts = {output.path.name: output.layout_of(new.recipe)}
            files = {output.path.name: source.weights.first_file}
        else:
            texts[RECIPE_FILE] = new.recipe
        total = output.bytes_to_write
        is_early = total <= EARLY_BYTES and hasattr(os, "posix_fadvise")

        def written(file: BinaryIO, count: int) -> None:
            if is_early:
                with contextlib.suppress(OSError):  # only a hint, which some file systems reject
                    start = file.tell() - count
                    os.posix_fadvise(file.fileno(), start, count, os.POSIX_FADV_DONTNEED)
            progress(count, total)

        for name, layout in layouts.items():
            path = staged / name
            file = files[name]
            with open_source(file.path) as opened, path.open("xb", buffering=0) as created:
                write_layout(file, opened, layout, new.tensor, created, written)
            path.chmod(file.path.stat().st_mode & 0o777)
        for name in sorted(sizes.keys() - layouts.keys() - texts.keys() - output.links.keys()):
            path = staged / name
            with open_source(source.root / name) as opened, path.open("xb", buffering=0) as created:
                status = os.fstat(opened.fileno())
                copy_range(opened, created, 0, status.st_size, written)
            path.chmod(status.st_mode & 0o777)
        for name, text in texts.items():
            (staged / name).write_bytes(text)
            if name in source.files:
                (staged / name).chmod((source.root / name).stat().st_mode & 0o777)
            progress(len(text), total)
        source.check_unchanged()
        written_names = sizes.keys() - output.links.keys()
        size = sum((staged / name).stat().st_size for name in written_names)
        if check is not None:
            check(staged / output.path.name if output.is_file else staged)
    return Written(size=size, warnings=new.warnings)
