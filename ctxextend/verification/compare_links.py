"""Weights files that an output shares with its base: a change of one of them changes both."""

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.verification.expected import Expected


def changed_links(expected: Expected, resized: Checkpoint) -> tuple[str, ...]:
    """Return the weights files of the base that the resized checkpoint links, if they have changed.

    Comparing such a file with the base's compares it with itself. So the weights of the base are
    compared with the fingerprint that the recipe records of them, where it records one.
    """
    base = expected.base
    linked = []
    for name, file in resized.weights.files.items():
        other = base.weights.files.get(name)
        if other is not None and file.path.samefile(other.path):
            linked.append(name)
    recorded = expected.recorded.fingerprint
    if not linked or recorded is None or recorded == base.weights.fingerprint():
        return ()
    return tuple(linked)
