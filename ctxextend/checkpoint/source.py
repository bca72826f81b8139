"""Resolve a checkpoint reference to a local folder; check which of its files are safe to open."""

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

from ctxextend.checkpoint.filenames import (
    CONSOLIDATED,
    GGUF_SUFFIX,
    IGNORED_NAMES,
    NAMES,
    READABLE,
    SAFETENSORS,
    SINGLE_FILE,
    first_match,
    with_variant,
)
from ctxextend.checkpoint.foreign_files import STALE, find_foreign
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
CONFIG_FILES = ("config.json", "modules.json")  # all that is read without weights
# Patterns are compiled at use: most runs need none, and compiling them takes longer than a run.
HUB_ID = r"(?:[\w][\w.-]*/)?[\w][\w.-]*"
CACHED_MODEL = "models--"  # the start of a folder of the Hub cache
# A snapshot in the Hub cache: its commit, and the cache folder whose blobs its files link to.
SNAPSHOTS = "/snapshots/"
CACHE_SNAPSHOT = (
    r"(?P<cache>.*/models--(?P<id>[^/]+))/snapshots/(?P<sha>[0-9a-f]{40})(?P<below>/.*)?"
)

# A file of the cache by the hash of its content.
CACHE_BLOB = r".*/models--[^/]+/blobs/(?:[0-9a-f]{40}|[0-9a-f]{64})"

# Called with a config, and may raise. Called again with False if there are no weights to detect the
# model type from.
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
    only_config: bool = False,
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
        only_config: Download no weights, and no other files but the config.
        only_headers: Of safetensors weights in the Hub, download only the headers.

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

    if stat.S_ISREG(mode):
        kind = "file"
        _reject_flags(text, kind, revision=revision, subfolder=subfolder, variant=variant)
        return _file_source(text, Path(path))
    if stat.S_ISDIR(mode):
        _reject_flags(text, "checkpoint", revision=revision)
        folder = Path(path).resolve()
        name = folder.name or "model"
        if Path(path).is_symlink():  # an output is named after it
            name = Path(path).name
        source = _cached_source(Source(reference=text, kind="folder", folder=folder, name=name))
    elif text in BUNDLED:
        _reject_flags(text, "checkpoint", revision=revision)
        source = bundled_source(text)
    else:
        _check_may_be_hub_id(text, path)

        def choose(names: Sequence[str]) -> Iterable[str]:
            if only_config:
                return [name for name in names if name in CONFIG_FILES]
            return _needed_files(names, variant)

        if only_headers and subfolder is None:
            source = _hub_source_of_headers(text, revision, variant, check)
        else:
            source = _hub_source(text, revision, subfolder, choose, check)
    if subfolder is None:
        return source
    return _in_subfolder(source, subfolder)


def _check_may_be_hub_id(text: str, path: str) -> None:
    if "://" in text:
        hint = "Download it, and pass the file; of the Hub, pass the id (owner/name)."
        raise SourceError(f"{text} is a URL, which is not downloaded.", hint)
    exists = os.path.lexists(path)
    name = Path(text).name
    if name.startswith(CACHED_MODEL) and not exists:
        message = f"{text} is named as a folder of the Hub cache, and does not exist here."
        raise SourceError(message, f"Pass the Hub id: {cached_id(name)}")
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
    try:
        for config in Path(os.path.expanduser(parent)).glob("*/config.json"):  # noqa: PTH111 - as above
            folders.append(os.path.join(parent, config.parent.name))  # noqa: PTH118 - keeps ./
    except (OSError, ValueError):  # it cannot be read
        return []
    return sorted(folders)


def _reject_flags(text: str, kind: str, **flags: str | None) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise SourceError(
                f"--{flag} {value} does not apply to the local {kind} {text}.",
                f"Remove --{flag}.",
            )


def _in_subfolder(source: Source, subfolder: str) -> Source:
    folder = source.folder / subfolder
    if not os.path.isdir(folder):  # noqa: PTH112 - never raises
        raise SourceError(f"{source.reference} has no subfolder {subfolder}.", "Check --subfolder.")
    prefix = f"{PurePosixPath(subfolder).as_posix()}/"
    below = list[str]()
    for name in source.not_downloaded:
        if name.startswith(prefix):
            below.append(name.removeprefix(prefix))
    name = f"{source.name}-{folder.name}"
    return source._replace(folder=folder, name=name, not_downloaded=tuple(below))


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
    source = Source(reference=reference, kind="file", folder=folder, name=name, file=path.name)
    return _cached_source(source)


def _cached_source(source: Source) -> Source:
    cached = _cache_snapshot(source.folder)
    if cached is None or cached["below"]:
        return source
    hub_id = cached["id"].replace("--", "/")
    name = hub_id.split("/")[-1]
    return source._replace(name=name, hub_id=hub_id, revision=cached["sha"])


def _cache_snapshot(folder: Path) -> re.Match[str] | None:
    path = folder.as_posix()
    if SNAPSHOTS not in path:
        return None
    return re.fullmatch(CACHE_SNAPSHOT, path)


def _hub_source(
    hub_id: str,
    revision: str | None,
    subfolder: str | None,
    choose_files: Callable[[Sequence[str]], Iterable[str]],
    check: ConfigCheck,
) -> Source:
    from ctxextend.checkpoint.hub import download

    below = f"{PurePosixPath(subfolder).as_posix()}/" if subfolder else ""

    def choose(files: list[str]) -> list[str]:
        names = [name.removeprefix(below) for name in files if name.startswith(below)]
        return [f"{below}{name}" for name in choose_files(names)]

    folder, files = download(
        hub_id,
        revision,
        f"{below}config.json",
        choose,
        lambda path: check(load_object(path)),
        similar=[*_folders_next_to(hub_id), *BUNDLED],
    )
    snapshot = _cache_snapshot(folder)
    return Source(
        reference=hub_id,
        kind="hub",
        folder=folder,
        name=hub_id.split("/")[-1],
        hub_id=hub_id,
        revision=snapshot["sha"] if snapshot else None,
        not_downloaded=tuple(file for file in files if not (folder / file).exists()),
    )


def _hub_source_of_headers(
    hub_id: str, revision: str | None, variant: str | None, check: ConfigCheck
) -> Source:
    from ctxextend.checkpoint.hub import open_remote

    def choose(names: Sequence[str]) -> list[str]:
        weights = _remote_weights(names, variant)
        return [name for name in _needed_files(names, variant) if name not in weights]

    source = _hub_source(hub_id, revision, None, choose, check)
    remote = dict[str, "RemoteFile"]()
    for name in _remote_weights(source.not_downloaded, variant):
        path = source.folder / name
        remote[name] = open_remote(hub_id, source.revision or revision, name, path)
    return source._replace(remote=remote)


def _remote_weights(names: Sequence[str], variant: str | None) -> list[str]:
    single = with_variant(SINGLE_FILE, variant)
    if single in names:
        return [single]
    shards = _shards_pattern(with_variant(f"{SINGLE_FILE}.index.json", variant), variant)
    return [name for name in names if fnmatch(name, shards)]


def _shards_pattern(index: str, variant: str | None) -> str:
    stem, _, suffix = index.partition(".")
    middle = "" if variant is None else f".{variant}"
    return f"{stem}{middle}-*.{suffix.partition('.')[0]}"


def _needed_files(names: Sequence[str], variant: str | None) -> Iterator[str]:
    candidates = [with_variant(plain, variant) for plain in NAMES]
    weights = next((name for name in candidates if name in names), "")
    shards = ""
    if "index" in weights:
        shards = _shards_pattern(weights, variant)
    for name in names:
        if not weights and fnmatch(name, CONSOLIDATED):  # a folder without other weights is refused
            continue
        path = PurePosixPath(name)
        is_ignored = any(part in IGNORED_NAMES for part in path.parts)
        is_skipped = is_ignored or first_match(path, STALE) is not None
        if name == weights or fnmatch(name, shards) or not is_skipped:
            yield name


REGULAR = "a regular file"
FOLDER = "a folder"
BROKEN = "a broken symlink"  # or a circular one
IRREGULAR = "not a regular file"  # such as a pipe or a device
OUTSIDE = "a symlink that points outside the folder"


def has_file(source: Source, path: Path) -> bool:
    """Whether a checkpoint has this file.

    Raises:
        CheckpointError: The path is not a regular file, or a symlink out of the folder.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:  # names with NUL or surrogates
        return False
    kind = kind_of_path(path)
    if kind != REGULAR:
        raise CheckpointError(
            f"{path} is {kind}.", "Replace it with the file itself, or download it again."
        )
    is_passed = source.file is not None and path == source.folder / source.file
    if not is_passed and points_outside(source.folder, path):
        raise CheckpointError(
            f"{path} is {OUTSIDE}, and was not read.", dereference_hint(source.folder)
        )
    return True


def kind_of_path(path: Path) -> str:
    """Return what an existing path is: `REGULAR`, `FOLDER`, `BROKEN` or `IRREGULAR`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return BROKEN
    if stat.S_ISREG(mode):
        return REGULAR
    if stat.S_ISDIR(mode):
        return FOLDER
    return IRREGULAR


def points_outside(folder: Path, path: Path) -> bool:
    """Whether a path leads, through symlinks, out of a folder and the blobs of its Hub cache.

    Weights may lead to a blob of any Hub cache, as in an output of ``--link``. Its name is a hash,
    so that only who knows its content can name it.
    """
    inside = Path(os.path.realpath(folder))
    allowed = {inside}
    cached = _cache_snapshot(inside)
    if cached is not None:
        allowed.add(Path(cached["cache"]) / "blobs")
    target = Path(os.path.realpath(path))
    if not allowed.isdisjoint(target.parents):
        return False
    return not (path.suffix == SAFETENSORS and is_cache_blob(target))


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
