"""An output: what its folder will contain, whatever made it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.rewrite import Layout, file_sizes
from ctxextend.output.record import Hashes


class NewTensors(NamedTuple):
    """The tensors that an output changes."""

    tensor: Callable[[str], NDArray[Any]]  # by name, called once per tensor
    hashes: Hashes  # for the recipe
    warnings: tuple[str, ...] = ()  # about values that are not finite


@dataclass(frozen=True)
class Output:
    """What an output folder will contain; `write_output` writes it.

    Everything but the new tensors and their hashes is known before. `write_output` calls
    `recipe` with `placeholders` for the size of the recipe in another folder than the default;
    then `compute`; then `recipe` with the hashes that `compute` returned.
    """

    source: Checkpoint  # whose other tensors and files are copied
    default_folder: Path  # in the current folder
    layouts: Mapping[str, Layout]  # of weights files that change or are renamed, by new name
    # Edited and created files, by path; the hashes in the recipe are placeholders.
    texts: Mapping[str, bytes]
    compute: Callable[[], NewTensors] = field(repr=False)  # called once, when it is written
    placeholders: Hashes  # as long as those that `compute` returns
    # Returns the recipe for an output folder, with the hashes of what was written.
    recipe: Callable[[Path, Hashes], bytes] = field(repr=False)
    has_weights: bool = True  # False: only edited and created files are written

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """Size in bytes of each output file."""
        return file_sizes(self.source, self.layouts, self.texts)

    @property
    def bytes_to_write(self) -> int:
        """Total size at the default folder; elsewhere, local paths in the recipe differ."""
        return sum(self.file_sizes.values())

    @property
    def bytes_shareable(self) -> int:
        """Bytes in unchanged blocks, which a file system with block cloning does not write."""
        copied = sum(self.file_sizes[name] for name in self.files["copied"])
        return copied + sum(layout.shareable for layout in self.layouts.values())

    @property
    def files(self) -> Mapping[str, Any]:
        """The files of the output: what each becomes, and why others are omitted.

        - ``rewritten``: weights files that change or are renamed, and those that this library
          generates from others of the source.
        - ``copied``: files of the source that stay as they are.
        - ``edited``: files of the source with another text.
        - ``created``: new files: the recipe and, if the source has none, the model card.
        - ``omitted``: files of the source that the output does not have, with the reason.
        """
        names = self.source.files
        texts = self.texts.keys()
        rewritten = [*self.layouts, *sorted(self.source.generated.keys() & names)]
        return {
            "rewritten": tuple(rewritten),
            "copied": tuple(sorted(names - texts - self.layouts.keys())),
            "edited": tuple(sorted((texts & names).difference(rewritten))),
            "created": tuple(sorted(texts - names)),
            "omitted": self.source.omitted,
        }
