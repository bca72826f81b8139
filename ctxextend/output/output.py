"""An output: what its folder will contain, whatever made it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.filenames import GGUF_SUFFIX, SAFETENSORS
from ctxextend.checkpoints.folder import Checkpoint, protected_paths
from ctxextend.checkpoints.rewrite import Layout, file_sizes, write_files
from ctxextend.errors import OutputError
from ctxextend.progress import Progress
from ctxextend.recipe import RECIPE_FILE

if TYPE_CHECKING:
    from ctxextend.checkpoints.links import Link


class NewTensors(NamedTuple):
    """The tensors that an output changes, and the recipe that records them."""

    tensor: Callable[[str], NDArray[Any]]  # by name, called once per tensor
    recipe: bytes  # with the hashes of the tensors
    warnings: tuple[str, ...] = ()  # about values that are not finite


class Filled(NamedTuple):
    """What was written to the temporary folder or file of an output."""

    size: int  # of all files but links, in bytes
    warnings: tuple[str, ...]  # about the new tensors


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
    """What an output folder will contain; `write_output` writes it.

    Everything is known before it is written, except the new tensors, and their hashes in the
    recipe: `texts` has the planned one for the default folder, with placeholders that are as long
    as the hashes, and `compute` returns the final one, which `write_output` writes instead.
    """

    source: Checkpoint  # whose other tensors and files are copied; it names weights as the output
    default_folder: Path  # in the current folder, unless the user has given one
    layouts: Mapping[str, Layout]  # of weights files that change or are renamed, by new name
    texts: Mapping[str, bytes]  # edited and created files, by path
    # Returns the new tensors, and the recipe for an output folder; called once, while it is
    # written.
    compute: Callable[[Path], NewTensors] = field(repr=False)
    has_weights: bool = True  # False: only edited and created files are written
    # Weights files that are linked instead of copied, by path.
    links: "Mapping[str, Link]" = field(default_factory=dict)
    links_weights: bool = False  # whether links were requested, also if none is possible

    def with_links(self) -> "Output":
        """Return the output with links to the weights files of the source that stay as they are."""
        # Here, since few outputs have links.
        from ctxextend.checkpoints.links import plan_link

        links: dict[str, Link] = {}
        for name in self.files.copied:
            if name.endswith(SAFETENSORS):
                links[name] = plan_link(self.source.root / name)
        return replace(self, links=links, links_weights=True)

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """Bytes to write of each file in the default folder; none of links."""
        sizes = file_sizes(self.source, self.layouts, self.texts)
        return {**sizes, **dict.fromkeys(self.links, 0)}

    @property
    def bytes_to_write(self) -> int:
        """Total size in the default folder, with `bytes_shareable`, which may not be written."""
        return sum(self.file_sizes.values())

    @property
    def bytes_shareable(self) -> int:
        """Bytes in unchanged blocks, which a file system with block cloning does not write."""
        copied = sum(self.file_sizes[name] for name in self.files.copied)
        return copied + sum(layout.shareable for layout in self.layouts.values())

    @property
    def files(self) -> OutputFiles:
        """The files of the output.

        A file that is generated from others of the source has its text in `texts`.
        """
        in_source = self.source.files
        weights = self.layouts.keys()
        others = in_source - weights
        texts = self.texts.keys()
        generated = self.source.generated.keys() & in_source
        return OutputFiles(
            rewritten=(*self.layouts, *sorted(generated)),
            copied=tuple(sorted(others - texts - self.links.keys())),
            linked={name: self.links[name].kind for name in sorted(self.links)},
            edited=tuple(sorted((others & texts) - generated)),
            created=tuple(sorted(texts - in_source)),
            omitted=self.source.omitted,
        )

    def files_in(self, folder: Path) -> OutputFiles:
        """Return the files of the output in a folder: their paths are relative to it."""
        return self.files

    def check_path(self, folder: Path, *, force: bool) -> None:
        """Check that a folder can be written, without writing anything.

        Raises:
            OutputError: It exists, cannot be written or replaced, or there is too little disk
                space, or a file cannot be linked there.
        """
        self._check_folder(folder)
        check_output(folder, protected_paths(self.source), self.file_sizes, force=force)

    def _check_folder(self, folder: Path) -> None:
        """Check the name of a folder, and that it can have the links.

        Raises:
            OutputError: It is new and named as a GGUF file, or a hard link would lead to another
                file system.
        """
        if folder.suffix.lower() == GGUF_SUFFIX and not folder.exists():
            message = f"The output {folder} is named as a GGUF file, but a folder is written."
            hint = "Use another -o, and convert the folder with convert_hf_to_gguf.py of llama.cpp."
            raise OutputError(message, hint)
        if self.links:
            from ctxextend.checkpoints.links import check_links

            check_links(self.links, folder)

    def stage(self, folder: Path, *, force: bool) -> AbstractContextManager[Path]:
        """Yield a temporary folder, which becomes the output if nothing fails.

        Raises:
            OutputError: As `check_path`.
        """
        self._check_folder(folder)
        return atomic_folder(folder, protected_paths(self.source), self.file_sizes, force=force)

    def fill(self, staged: Path, folder: Path, progress: Progress) -> Filled:
        """Write all files to a temporary folder.

        Args:
            staged: The temporary folder.
            folder: The output folder, to which local paths in the recipe are relative.
            progress: Called with the bytes written since the last call and the total.

        Raises:
            CheckpointError: The source cannot be read.
            ResizeError: A new table does not fit in memory.
        """
        if self.links:
            from ctxextend.checkpoints.links import make_links

            make_links(self.links, staged, folder)  # first, since it may fail
        new = self.compute(folder)
        total = self.bytes_to_write - len(self.texts[RECIPE_FILE]) + len(new.recipe)
        write_files(
            self.source,
            staged,
            self.layouts,
            new.tensor,
            {**self.texts, RECIPE_FILE: new.recipe},
            lambda count: progress(count, total),
            linked=self.links.keys(),
        )
        written = self.file_sizes.keys() - self.links.keys()
        size = sum((staged / name).stat().st_size for name in written)
        return Filled(size=size, warnings=new.warnings)
