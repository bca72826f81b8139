"""An output: what its folder will contain, and the one function that writes it."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from numpy.typing import NDArray

from ctxextend.card import CARD_FILE, UNDECODED, output_card
from ctxextend.checkpoint.atomic_output import atomic_folder, check_output
from ctxextend.checkpoint.filenames import GGUF_SUFFIX, SAFETENSORS
from ctxextend.checkpoint.folder import Checkpoint, protected_paths
from ctxextend.checkpoint.json_edit import delete, edit
from ctxextend.checkpoint.rewrite import Layout, planned_sizes, write_files
from ctxextend.checkpoint.weights import Weights
from ctxextend.errors import MethodError, OutputError
from ctxextend.notes import Note
from ctxextend.plan import Plan
from ctxextend.positions.change import Change
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE
from ctxextend.record import Hashes, output_record, recipe_bytes, table_hash
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.stats import describe_rows

if TYPE_CHECKING:
    from ctxextend.checkpoint.links import Link
    from ctxextend.gguf.gguf_output import GgufOutput


class ComputedTensors(NamedTuple):
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
    compute: Callable[[Path], ComputedTensors] = field(repr=False)
    has_weights: bool = True  # False: only edited and created files are written
    # Weights files that are linked instead of copied, by path.
    links: "Mapping[str, Link]" = field(default_factory=dict)
    links_weights: bool = False  # whether links were requested, also if none is possible

    def with_links(self) -> "Output":
        """Return the output with links to the weights files of the source that stay as they are."""
        # Here, since few outputs have links.
        from ctxextend.checkpoint.links import plan_link

        links: dict[str, Link] = {}
        for name in self.files.copied:
            if name.endswith(SAFETENSORS):
                links[name] = plan_link(self.source.root / name)
        return replace(self, links=links, links_weights=True)

    @cached_property
    def file_sizes(self) -> Mapping[str, int]:
        """Bytes to write of each file in the default folder: 0 for links."""
        sizes = planned_sizes(self.source, self.layouts, self.texts)
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

    def files_in(self, folder: Path) -> OutputFiles:
        """Return `files`, in any folder; the one of a GGUF output is named after its path."""
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
            from ctxextend.checkpoint.links import check_links

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
            from ctxextend.checkpoint.links import make_links

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


class Written(NamedTuple):
    """An output that was written."""

    folder: Path  # or a GGUF file
    size: int  # of all files but links, in bytes
    warnings: tuple[str, ...]  # about the new tensors


def output_path(folder: str | os.PathLike[str] | None, default: Path) -> Path:
    """Return the output folder: the given one with ``~`` expanded, or the default."""
    if folder is None:
        return default
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - never raises


def no_check(folder: Path) -> None:
    """Check nothing of an output."""


def write_output(
    output: "Output | GgufOutput",
    folder: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    check: Callable[[Path], None] = no_check,
) -> Written:
    """Write an output; resize, convert and train all do it here.

    Args:
        output: What to write.
        folder: Where. Defaults to the output's default folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        progress: Called with the bytes written since the last call and the total.
        check: Called with the complete temporary folder before it is renamed; if it raises,
            nothing is written.

    Raises:
        OutputError: The output exists, cannot be written or replaced, or there is too little disk
            space.
        CheckpointError: The source cannot be read, or changed after it was planned.
        ResizeError: A new table does not fit in memory.
    """
    path = output_path(folder, output.default_folder)
    output.source.check_unchanged()
    with output.stage(path, force=force) as staged:
        size, warnings = output.fill(staged, path, progress)
        if check is not no_check:
            check(staged)
    return Written(folder=path, size=size, warnings=warnings)


def make_output(plan: Plan, notes: Sequence[Note], *, edit_only: bool = False) -> Output:
    """Return the output of a resize or conversion, to be written by `write_output`.

    Args:
        plan: What changes.
        notes: What the model card says about it.
        edit_only: Write only edited and created files, and no weights.

    Raises:
        CheckpointError: A file to edit cannot be read.
        MethodError: `edit_only` is set, but the weights change too.
    """
    if edit_only and plan.layouts:
        refuse_weights(list(plan.layouts))
    source = plan.checkpoint
    default_folder = Path(plan.output_name)
    record = output_record(plan)
    texts = edited_texts(plan)
    texts[CARD_FILE] = output_card(plan, notes).encode("utf-8", UNDECODED)
    if edit_only:
        if source.weights.is_remote:
            record["provenance"]["source_fingerprint"] = None
        copied = tuple(name for name in source.copied if name in (*texts, RECIPE_FILE))
        source = replace(source, weights=Weights(files={}), copied=copied)
    texts[RECIPE_FILE] = recipe_bytes(record, default_folder)
    return Output(
        source=source,
        default_folder=default_folder,
        layouts=plan.layouts,
        texts=texts,
        compute=partial(compute_tensors, plan, record),
        has_weights=not edit_only,
    )


def refuse_weights(files: Sequence[str]) -> NoReturn:
    """Refuse weights files that an output of only edited files would lack.

    Raises:
        MethodError: Always.
    """
    message = f"--edit-only writes no weights, but {' and '.join(files[:2])} must be written."
    raise MethodError(message, "Remove --edit-only.")


def edited_texts(plan: Plan) -> dict[str, bytes]:
    """Return the generated and edited files of an output, by path.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    checkpoint = plan.checkpoint
    texts = dict(checkpoint.generated)
    for name in dict.fromkeys(item.file for item in plan.edits):
        values = {item.path: item.after for item in plan.edits if item.file == name}
        texts[name] = edit(checkpoint.text(name), values)
    if checkpoint.weights.index is not None and plan.layouts:
        added = 0
        for change in plan.stored:
            added += (change.rows_after - change.rows_before) * change.hidden_size
        texts[checkpoint.weights.index_file] = index_text(
            checkpoint, plan.layouts, plan.dropped, added
        )
    # Files can be invalid UTF-8.
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def index_text(
    checkpoint: Checkpoint,
    layouts: Mapping[str, Layout],
    dropped: Collection[str] = (),
    added: int = 0,
) -> str:
    """Return the shard index with updated totals, and without dropped tensors.

    Args:
        checkpoint: The source.
        layouts: Of weights files that change.
        dropped: Tensors that the output does not have.
        added: The number of new parameters.

    Raises:
        CheckpointError: The index cannot be read.
    """
    text = checkpoint.text(checkpoint.weights.index_file)
    metadata = (checkpoint.weights.index or {}).get("metadata")
    if isinstance(metadata, Mapping):
        totals: dict[tuple[str, ...], Any] = {}
        if "total_size" in metadata:
            sizes = {name: file.tensor_bytes for name, file in checkpoint.weights.files.items()}
            sizes |= {name: layout.tensor_bytes for name, layout in layouts.items()}
            totals["metadata", "total_size"] = sum(sizes.values())
        parameters = metadata.get("total_parameters")
        if isinstance(parameters, int | float):
            totals["metadata", "total_parameters"] = parameters + added
        text = edit(text, totals)
    return delete(text, ("weight_map",), dropped)


def compute_tensors(plan: Plan, record: Mapping[str, Any], folder: Path) -> ComputedTensors:
    """Create the new tables and buffers of an output, and the recipe with their hashes.

    Args:
        plan: What changes.
        record: The values of the recipe, with placeholders of the hashes.
        folder: The output folder.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: A table does not fit in memory.
    """
    fingerprint = None
    if not plan.checkpoint.weights.is_remote:
        fingerprint = plan.checkpoint.weights.fingerprint()
    values = {name: tensor.compute() for name, tensor in plan.tensors.items()}
    hashes = dict[str, str]()
    warnings = list[str]()
    for change in plan.stored:
        after = values[change.name]
        hashes[change.name] = table_hash(after)
        bad = nonfinite_rows(after)
        if bad:
            warnings.append(_nonfinite_warning(change, len(bad)))
    return ComputedTensors(
        tensor=values.__getitem__,
        recipe=recipe_bytes(record, folder, Hashes(fingerprint=fingerprint, tables=hashes)),
        warnings=tuple(warnings),
    )


def _nonfinite_warning(change: Change, count: int) -> str:
    """Return the warning about a table with a number of rows that contain NaN or infinity."""
    learned = nonfinite_rows(change.positions.read()[: change.rows_before])
    if not learned:
        return f"{count} new rows of {change.name} overflow {change.dtype} to infinity."
    rows = "rows" if len(learned) > 1 else "row"
    return (
        f"{change.name} contains NaN or infinity in {rows} {describe_rows(learned)}; so do "
        f"{count} of the {change.rows_after} rows of the output."
    )
