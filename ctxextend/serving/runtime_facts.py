"""What in a planned folder decides what runtimes do with it."""

from ctxextend.checkpoint.folder import MODULES
from ctxextend.limits.statements import TOKENIZER_CONFIG
from ctxextend.plan import Plan
from ctxextend.positions.change import Change
from ctxextend.runtimes.rule_schema import (
    LINEAR,
    RAISED_THETA,
    REMOVED,
    SWITCHED,
    YARN,
    FolderFacts,
)
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    FACTOR_OF_NO_ROTATION,
    LIST_MSCALES,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    Parameters,
    has_switch_lists,
    rotates,
    yarn_betas,
)


def folder_facts(plan: Plan) -> FolderFacts | None:
    """Return what decides what runtimes do with a planned folder.

    None if no rule is about such folders: nothing changes, the user named the table, there is no
    config, the folder's own code loads it, the model has positions of several kinds, or it has none
    by other settings than ``linear`` ones.
    """
    checkpoint = plan.checkpoint
    is_known_type = plan.model.ref.table is None and checkpoint.has_config
    states_other_type = checkpoint.config.get("model_type") != plan.model_type
    runs_own_code = plan.model.own_class is not None and states_other_type
    kinds = {_positions_of(change) for change in plan.changes}
    if not is_known_type or runs_own_code or len(kinds) != 1 or not plan.is_changed:
        return None
    positions = kinds.pop()
    change = plan.changes[0]
    after = change.positions_after
    unrotated = {settings[TYPE] for settings in change.settings.values()} or after.rope_types
    if positions == REMOVED and unrotated != {LINEAR}:
        return None
    rope: Parameters = {}
    trained_key = None
    if change.settings:
        _, rope = change.changed_layers[0]
        trained_key = after.stated_or_default(TRAINED)
    other_betas = None
    if rope.get(TYPE) == YARN:
        betas = yarn_betas(rope)
        if betas != YARN_BETAS:
            other_betas = (betas[BETA_FAST], betas[BETA_SLOW])
    return FolderFacts(
        model_type=plan.model_type,
        positions=positions,
        max_len=plan.max_len_after,
        stated=change.positions.key_value(change.stated_after),
        first_trained=change.positions.lengths.first_trained,
        trained_key=trained_key,
        factor=rope.get(FACTOR, FACTOR_OF_NO_ROTATION if positions == REMOVED else 1.0),
        theta=rope.get(THETA),
        dialects=after.dialects,
        attention_factor=rope.get(ATTENTION_FACTOR),
        list_mscales=tuple(rope[key] for key in LIST_MSCALES if rope.get(key) is not None),
        betas=other_betas,
        has_sentence_length=MODULES in checkpoint.copied,
        has_tokenizer_length=TOKENIZER_CONFIG in checkpoint.copied,
        table_name=change.name,
    )


def _positions_of(change: Change) -> str:
    """Return the positions of an output as rules name them."""
    if not change.settings:
        return change.positions.unscaled_name or change.scheme
    if not any(map(rotates, change.settings.values())):
        return REMOVED
    layers, after = change.changed_layers[0]
    if has_switch_lists(after):
        return SWITCHED
    kind: str = after[TYPE]
    if kind != "default":
        return kind
    if after[THETA] != layers.default_theta:
        return RAISED_THETA
    return change.positions.unscaled_name
