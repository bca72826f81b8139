"""Open a checkpoint for an evaluation: also a causal language model that cannot be resized.

Such a model has no positions that ctxextend knows, so it is read at the length that its files or
the user state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ctxextend.checkpoint.checkpoint import MODULES, no_lm_head, stated_class
from ctxextend.checkpoint.folder import open_checkpoint
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.lab.eval_model import CAUSAL, ModelFiles, open_files
from ctxextend.limits.statements import StatedLength, stated_length
from ctxextend.models.load import check_loadable
from ctxextend.opening.opened_model import open_model
from ctxextend.opening.own_code import own_class
from ctxextend.settings import CheckpointRef


@dataclass(frozen=True)
class StatedFiles(ModelFiles):
    """A causal language model of transformers whose positions cannot be resized."""

    stated: StatedLength | None  # by its files

    kind: ClassVar = CAUSAL

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: which length it is read at, and whose code reads it."""
        notes = [*super().notes]
        stated = self.stated
        if stated is None:
            notes.append(f"{self.name} states no context length: --length is taken as its own.")
        elif stated.tokens < self.max_len:
            notes.append(
                f"{self.name} states {stated.key} {stated.tokens} in {stated.file}: it may not be "
                "trained on longer texts."
            )
        if own_class(self.checkpoint.config) is not None:
            notes.append(
                f"{self.checkpoint.config_file} has auto_map: transformers' own {self.model_type} "
                "class is evaluated, not the folder's code."
            )
        return tuple(notes)


def open_to_evaluate(ref: CheckpointRef, lengths: Sequence[int] = ()) -> ModelFiles:
    """Open a checkpoint to evaluate it, whether or not its positions can be resized.

    Args:
        ref: The checkpoint.
        lengths: The context lengths that the user asks for, if any. The longest one may exceed what
            a model states that cannot be resized.

    Raises:
        CtxextendError: As `open_model` and `open_files`.
        CheckpointError: A model that cannot be resized states no context length, and the user
            neither.
    """
    try:
        opened = open_model(ref)
    except UnsupportedModelError as error:
        if ref.model_type is not None or ref.table is not None:
            raise  # the user says what its positions are
        return _open_stated(ref, lengths, error)
    return open_files(opened)


def _is_other_causal_model(config: Mapping[str, Any]) -> bool:
    """Whether transformers' own causal class, and no other, loads what cannot be resized."""
    from transformers.models.auto import modeling_auto as auto

    model_type = config.get("model_type")
    classes = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if model_type not in classes:
        return False
    stated = stated_class(config)
    if stated in classes.values():
        return True
    if stated is not None and no_lm_head(stated):
        return False
    others = (
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    return not any(model_type in names for names in others)


def _open_stated(
    ref: CheckpointRef, lengths: Sequence[int], unsupported: UnsupportedModelError
) -> StatedFiles:
    def check(config: Mapping[str, Any]) -> None:
        if not _is_other_causal_model(config):
            raise unsupported

    source = resolve_source(ref.source, ref.revision, ref.subfolder, ref.variant, check)
    checkpoint = open_checkpoint(source, ref.variant, check)
    if MODULES in checkpoint.copied or not checkpoint.config:
        raise unsupported
    check_loadable(checkpoint)
    stated = stated_length(checkpoint)
    known = [*lengths]
    if stated is not None:
        known.append(stated.tokens)
    if not known:
        message = (
            f"{ref.source} states no context length: neither {checkpoint.config_file} nor its "
            "tokenizer files have one."
        )
        raise CheckpointError(message, "Pass the longest context to measure: --length N.")
    return StatedFiles(
        ref=ref,
        checkpoint=checkpoint,
        model_type=str(checkpoint.config["model_type"]),
        tokenizer_name=ref.tokenizer or checkpoint.root / checkpoint.model,
        max_len=max(known),
        trainings=(),
        stated=stated,
    )
