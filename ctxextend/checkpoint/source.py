"""Resolve a checkpoint reference to a local folder; check which of its files are safe to open."""

import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

from ctxextend.checkpoint.copy import Fingerprint, file_fingerprint
from ctxextend.checkpoint.filenames import (
    CONSOLIDATED,
    GGUF_SUFFIX,
    READABLE,
    SAFETENSORS,
    find_foreign,
    first_weights,
    matches,
    names_below,
    skip_reason,
)
from ctxextend.checkpoint.json_edit import load_object
from ctxextend.errors import CheckpointError, SourceError, did_you_mean
from ctxextend.notes import Note

if TYPE_CHECKING:
    from ctxextend.checkpoint.safetensors_file import RemoteFile

_BUNDLED = Path(__file__).resolve().parents[1] / "bundled"
BUNDLED = {"tiny-gpt2": _BUNDLED / "tiny_gpt2", "tiny-lookup": _BUNDLED / "tiny_lookup"}  # by name

# Outputs are not named after weights files with these stems.
GENERIC_STEMS = ("model", "pytorch_model", "ckpt", "adapter_model")
# A missing file, and no Hub id.
WEIGHTS_ENDINGS = (SAFETENSORS, ".bin", GGUF_SUFFIX)
# Patterns are compiled at use: most runs need none, and compiling them takes longer than a run.
HUB_ID = r"(?:[\w][\w.-]*/)?[\w][\w.-]*"
CACHED_MODEL = "models--"  # the start of a folder of the Hub cache
# A snapshot in the Hub cache: its commit, and the cache folder whose blobs its files link to.
SNAPSHOTS = "/snapshots/"
CACHE_SNAPSHOT = (
    r"(?P<cache>.*/(?P<name>models--[^/]+))/snapshots/(?P<sha>[0-9a-f]{40})(?P<below>/.*)?"
)

# A file of the cache by the hash of its content.
CACHE_BLOB = r".*/models--[^/]+/blobs/(?:[0-9a-f]{40}|[0-9a-f]{64})"

# Called with a config, and may raise.
ConfigCheck = Callable[..., None]


class Source(NamedTuple):
    """A checkpoint's folder and its origin."""

    reference: str  # what the user typed
    kind: Literal["folder", "file", "bundled", "hub"]
    folder: Path
    name: str  # for default outputs: the last part of the reference
    hub_id: str | None = None  # owner/name, if known
    revision: str | None = None  # commit hash on the Hub, if known
    notes: tuple[Note, ...] = ()  # how the reference was resolved
    # Files of the Hub repository that were not downloaded, if known.
    not_downloaded: tuple[str, ...] = ()
    file: str | None = None  # the weights file that was passed instead of its folder
    # Weights files of the Hub of which only the header was downloaded, by name.
    remote: Mapping[str, "RemoteFile"] = {}
    blobs: Path | None = None  # of the Hub cache that the folder is in, to which its files link


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hub id."""
    return re.fullmatch(HUB_ID, text) is not None


def resolve_source(
    reference: str | os.PathLike[str],
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    check: ConfigCheck = lambda *_: None,
    *,
    only_headers: bool = False,
) -> Source:
    """Resolve a reference to a checkpoint: a local path first, then a bundled name, then a Hub id.

    Args:
        reference: What the user typed.
        revision: A branch, tag or commit of a Hub model.
        subfolder: A folder inside the checkpoint; not for a single file.
        variant: The variant of the weights; not for a single file.
        check: Is called with the config of a Hub model before its weights are downloaded, and may
            raise.
        only_headers: Of safetensors weights in the Hub, download only the headers, if possible.

    Raises:
        SourceError: The checkpoint does not exist or cannot be reached, or an argument does not
            apply to it.
    """
    text = os.fspath(reference)
    path = os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises for unknown users, and turns "" into "."
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - Path accepts fewer paths
    except PermissionError as error:  # the path exists, so it is not a Hub id
        message = f"{text} cannot be read: {error.strerror}."
        raise SourceError(message, "Check its permissions.") from error
    except (OSError, ValueError):
        mode = 0

    unused = dict[str, str | None]()
    if stat.S_ISREG(mode):
        unused = {"revision": revision, "subfolder": subfolder, "variant": variant}
    elif mode or text in BUNDLED:
        unused = {"revision": revision}
    for flag, value in unused.items():
        if value is not None:
            message = f"--{flag} {value} does not apply to {text}, which is local."
            raise SourceError(message, f"Remove --{flag}.")
    if stat.S_ISREG(mode):
        source = _file_source(text, Path(path))
    elif stat.S_ISDIR(mode):
        folder = Path(path).resolve()
        name = folder.name or "model"
        if Path(path).is_symlink():  # an output is named after it
            name = Path(path).name
        source = Source(reference=text, kind="folder", folder=folder, name=name)
    elif text in BUNDLED:
        source = bundled_source(text)
    else:
        _check_may_be_hub_id(text, path)
        only_headers = only_headers and subfolder is None
        source = _hub_source(
            text, revision, subfolder or ".", variant, check, only_headers=only_headers
        )
    if SNAPSHOTS in source.folder.as_posix():
        source = _in_cache(source)
    if subfolder is None:
        return source
    folder = source.folder / subfolder
    if not os.path.isdir(folder):  # noqa: PTH112 - never raises
        raise SourceError(f"{text} has no subfolder {subfolder}.", "Check --subfolder.")
    return source._replace(
        folder=folder,
        name=f"{source.name}-{folder.name}",
        not_downloaded=tuple(names_below(source.not_downloaded, subfolder)),
    )


def _check_may_be_hub_id(text: str, path: str) -> None:
    if "://" in text:
        hint = "Download it, and pass the file; of the Hub, pass the id (owner/name)."
        raise SourceError(f"{text} is a URL, which is not downloaded.", hint)
    exists = os.path.lexists(path)
    if text.lower().endswith(WEIGHTS_ENDINGS) and not exists:
        raise SourceError(f"The file {text} does not exist.", "Check the path.")
    if exists or not is_hub_id(text):
        hint = did_you_mean(text, _folders_next_to(text))
        if not hint:
            hint = "Pass a checkpoint folder, a weights file or a Hub id (owner/name)."
        raise SourceError(f"{text} is not an existing folder or regular file.", hint)


def cached_id(name: str) -> str:
    """Return the Hub id of the model in a folder of the Hub cache, by the folder's name."""
    return name.removeprefix(CACHED_MODEL).replace("--", "/")


def _folders_next_to(text: str) -> list[str]:
    parent, _ = os.path.split(text)
    folders = list[str]()
    with suppress(OSError, ValueError):  # it cannot be read
        for config in Path(os.path.expanduser(parent)).glob("*/config.json"):  # noqa: PTH111 - as above
            folders.append(os.path.join(parent, config.parent.name))  # noqa: PTH118 - keeps ./
    return sorted(folders)


def bundled_source(name: str) -> Source:
    """Return a bundled checkpoint, even if a local folder has the same name."""
    return Source(reference=name, kind="bundled", folder=BUNDLED[name], name=name)


def _file_source(reference: str, path: Path) -> Source:
    """Return the source for a local weights file; the folder of a symlink is the symlink's."""
    # A file of another program is refused when it is opened.
    if path.suffix not in READABLE and find_foreign((path.name,)) is None:
        endings = ", ".join((*READABLE, GGUF_SUFFIX))
        hint = f"Pass a file that ends in {endings}, or a checkpoint folder."
        raise SourceError(f"{reference} is not a supported weights file.", hint)
    folder = path.parent.resolve()
    name = folder.name or "model"
    if path.stem not in GENERIC_STEMS and not (folder / "config.json").is_file():
        name = path.stem
    return Source(reference=reference, kind="file", folder=folder, name=name, file=path.name)


def _in_cache(source: Source) -> Source:
    """Return the source of a snapshot in the Hub cache, or of a folder in one."""
    cached = re.fullmatch(CACHE_SNAPSHOT, source.folder.as_posix())
    if cached is None:
        return source
    source = source._replace(blobs=Path(cached["cache"]) / "blobs")
    if cached["below"]:
        return source
    hub_id = source.hub_id or cached_id(cached["name"])
    return source._replace(name=hub_id.split("/")[-1], hub_id=hub_id, revision=cached["sha"])


def _hub_source(
    hub_id: str,
    revision: str | None,
    subfolder: str,
    variant: str | None,
    check: ConfigCheck,
    *,
    only_headers: bool,
) -> Source:
    from ctxextend.checkpoint.hub import download, open_remote

    below = f"{PurePosixPath(subfolder)}/".removeprefix("./")

    def choose(files: list[str]) -> list[str]:
        weights, needed = _files_to_read(names_below(files, subfolder), variant)
        for name in weights:
            if not only_headers or not name.endswith(SAFETENSORS):
                needed.append(name)
        return [f"{below}{name}" for name in needed]

    folder, files = download(
        hub_id,
        revision,
        f"{below}config.json",
        choose,
        lambda path: check(load_object(path)),
        similar=[*_folders_next_to(hub_id), *BUNDLED],
    )
    missing = tuple(file for file in files if not (folder / file).exists())
    remote = dict[str, "RemoteFile"]()
    if only_headers:
        weights, _ = _files_to_read(files, variant)
        for name in missing:
            if name in weights:
                remote[name] = open_remote(hub_id, folder.name, name, folder / name)
    return Source(
        reference=hub_id,
        kind="hub",
        folder=folder,
        name=hub_id.split("/")[-1],
        hub_id=hub_id,
        not_downloaded=missing,
        remote=remote,
    )


def _files_to_read(names: Sequence[str], variant: str | None) -> tuple[list[str], list[str]]:
    """Return the weights files of a repository that are read, and its other files."""
    first = first_weights(names, variant)
    pattern = first or ""
    if ".index." in pattern:
        stem, suffix = pattern.partition(".index.")[0].rsplit(".", 1)
        if variant is not None:
            stem = f"{stem}.{variant}"
        pattern = f"{stem}-*.{suffix}"
    weights = list[str]()
    others = list[str]()
    for name in names:
        path = PurePosixPath(name)
        if fnmatchcase(name, pattern):
            weights.append(name)
        elif first is None and matches(path, (CONSOLIDATED,)):
            continue  # a folder without other weights is refused
        elif name == first or not skip_reason(path):
            others.append(name)
    return weights, others


# Why a path is not read.
FOLDER = "a folder"
LINKED = "a symlink to a folder"
BROKEN = "a broken symlink"  # or a circular one
IRREGULAR = "not a regular file"  # such as a pipe or a device
OUTSIDE = "a symlink that points outside the folder"


def look_at(source: Source, path: Path) -> tuple[str, Fingerprint]:
    """Return why an existing path is not read, empty if it is a file, and its fingerprint.

    Symlinks may lead to files inside the folder, and to blobs of its Hub cache. Weights may lead to
    a blob of any Hub cache, as in an output of ``--link``: its name is a hash, so that only who
    knows its content can name it.
    """
    fingerprint = file_fingerprint(path)
    problem = ""
    if not fingerprint.mode:
        problem = BROKEN
    elif stat.S_ISDIR(fingerprint.mode):
        problem = FOLDER
        if path.is_symlink():
            problem = LINKED
    elif not stat.S_ISREG(fingerprint.mode):
        problem = IRREGULAR
    else:
        target = Path(os.path.realpath(path))
        is_inside = Path(os.path.realpath(source.folder)) in target.parents
        is_blob = source.blobs in target.parents
        if path.suffix == SAFETENSORS and not is_inside:
            is_blob = is_blob or is_cache_blob(target)
        is_passed = path == source.folder / (source.file or "")
        if not (is_inside or is_blob or is_passed):
            problem = OUTSIDE
    return problem, fingerprint


def has_file(source: Source, path: Path) -> bool:
    """Whether a checkpoint has this file.

    Raises:
        CheckpointError: The path is not a regular file, or a symlink out of the folder.
    """
    if not os.path.lexists(path):
        return False
    problem, _ = look_at(source, path)
    if problem:
        hint = "Replace it with the file itself, or download it again."
        if problem == OUTSIDE:
            hint = dereference_hint(source.folder)
        raise CheckpointError(f"{path} is {problem}, and was not read.", hint)
    return True


def is_cache_blob(path: Path) -> bool:
    """Whether a path is that of a file in the Hub cache, to which snapshots link."""
    return re.fullmatch(CACHE_BLOB, path.as_posix()) is not None


def dereference_hint(folder: Path) -> str:
    """Return the hint for a folder with symlinks to files outside it."""
    command = shlex.join(["cp", "-RL", str(folder), f"{folder.name}-copied"])
    return f"If you trust its source, copy the folder with all link targets: {command}"


def public_name(reference: str) -> str:
    """Return a Hub id or else the last component of a path, for reports without folder names."""
    path = Path(reference.replace("\\", "/"))
    if not reference or reference.startswith("hf:") or "://" in reference:
        return reference
    if len(path.parts) == 2 and not path.parent.exists():  # a Hub id
        return reference
    return path.absolute().name or reference
