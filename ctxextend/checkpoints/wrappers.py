"""Names of tensors of wrapped models.

DataParallel and torch.compile keep the model in an attribute, so its tensors' names have the
attribute's name in them. Names without it are those that transformers loads.
"""

from collections.abc import Iterable, Mapping

from ctxextend.checkpoints.safetensors_file import TensorFile
from ctxextend.errors import CheckpointError

COMPILED = "_orig_mod"  # of torch.compile: no model of transformers has it, so it is always removed
# Of DataParallel and DeepSpeed. Models may have this attribute: only removed if all names have it.
MODULE = "module."


def plain_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Return the name without wrappers of every stored name.

    Args:
        names: The stored names.
        where: The file, for messages.

    Raises:
        CheckpointError: Two names become one.
    """
    plain = dict[str, str]()
    for name in names:
        plain[name] = ".".join(part for part in name.split(".") if part != COMPILED)
    while plain and all(name.startswith(MODULE) for name in plain.values()):
        plain = {stored: name.removeprefix(MODULE) for stored, name in plain.items()}
    stored_of = dict[str, str]()
    for stored, name in plain.items():
        other = stored_of.setdefault(name, stored)
        if other != stored:
            both = f"as {other!r:.200} and as {stored!r:.200}"
            message = f"{where} contains {name!r:.200} twice, {both}."
            raise CheckpointError(message, "Save the model again, without its wrappers.")
    return plain


def without_wrappers(files: Mapping[str, TensorFile], where: str) -> dict[str, TensorFile]:
    """Return weights files with the plain names of their tensors, without a change to their bytes.

    Args:
        files: The files by name.
        where: What has them, for messages.

    Raises:
        CheckpointError: Two names become one.
    """
    names = [name for file in files.values() for name in file.entries]
    joined = "\n".join(names)  # one search in a text is faster than one in each of many names
    if COMPILED not in joined and not joined.startswith(MODULE):
        return dict(files)
    plain = plain_names(names, where)
    if all(stored == name for stored, name in plain.items()):
        return dict(files)
    return {path: file.with_names(plain) for path, file in files.items()}
