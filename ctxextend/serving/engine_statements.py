"""What engines do with a planned output: the one lookup in their rules, and notes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ctxextend.checkpoint.checkpoint import MODULES
from ctxextend.errors import joined
from ctxextend.json_output import not_in_json
from ctxextend.limits.statements import TOKENIZER_CONFIG
from ctxextend.notes import Code, Level, Note
from ctxextend.plan import Plan
from ctxextend.positions.change import Change
from ctxextend.runtimes.engines import (
    BETAS,
    ENGINES,
    ONLY_ROPE_PARAMETERS,
    RAISED_THETA,
    REMOVED,
    SWITCHED,
    Engine,
    Outcome,
    Rule,
)
from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    FACTOR,
    FACTOR_OF_NO_ROTATION,
    LIST_MSCALES,
    NEW,
    SHORT_LIST,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    Parameters,
    has_switch_lists,
    rotates,
    yarn_betas,
)
from ctxextend.tables.rotary_methods import MSCALE


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What in a folder decides what engines do with it."""

    model_type: str
    positions: str  # as rules name them
    max_len: int  # the requested context length, in usable positions
    # By name: the config key of the length (``stated``), that times the factor (``scaled``), the
    # first trained length next to the settings (``trained``), and those of sentence-transformers
    # (``sentence``) and of tokenizer_config.json (``tokenizer``). Missing ones are left out.
    lengths: Mapping[str, int]
    values: Mapping[str, str]  # that options state
    # What else it has: `ONLY_ROPE_PARAMETERS`, `BETAS`, keys of settings, the first part of the
    # table's name ("transformer."), or the key of `engine`.
    has: frozenset[str]
    engine: str | None = None  # the only one that reads it; None: any may


def folder_facts(plan: Plan) -> Facts | None:
    """Return what decides what engines do with a planned output.

    None if no rule is about such outputs: the user named the table, it has no config, the
    folder's own code loads it, the model has positions of several kinds, or it has none by other
    settings than ``linear`` ones.
    """
    checkpoint = plan.checkpoint
    states_other_type = checkpoint.config.get("model_type") != plan.model_type
    runs_own_code = plan.model.own_class is not None and states_other_type
    kinds = dict(_positions_of(change) for change in plan.changes)
    is_known = plan.model.ref.table is None and bool(checkpoint.config) and not runs_own_code
    if not is_known or len(kinds) != 1:
        return None
    change = plan.changes[0]
    after = change.positions_after
    positions, rope = kinds.popitem()
    factor = rope.get(FACTOR, 1.0)
    if positions == REMOVED:
        factor = FACTOR_OF_NO_ROTATION
        unrotated = {settings[TYPE] for settings in change.settings.values()} or after.rope_types
        if unrotated != {"linear"}:
            return None
    stated = change.positions.key_value(change.stated_after)
    lengths = {"stated": stated, "scaled": round(stated * factor)}
    trained = after.stated_or_default(TRAINED) if rope else None
    if trained is not None:
        lengths["trained"] = trained
    if MODULES in checkpoint.copied:
        lengths["sentence"] = plan.max_len_after
    if TOKENIZER_CONFIG in checkpoint.copied:
        lengths["tokenizer"] = plan.max_len_after
    betas = yarn_betas(rope) if rope else YARN_BETAS
    values = {
        "max_len": plan.max_len_after,
        "first_trained": change.lengths.first_trained,
        "factor": factor,
        "theta": rope.get(THETA, 0),
        **betas,
    }
    has = {f"{change.name.partition('.')[0]}.", checkpoint.engine or ""}
    if after.dialects == (NEW,):
        has.add(ONLY_ROPE_PARAMETERS)
    if betas != YARN_BETAS:
        has.add(BETAS)
    attention_factor = rope.get(ATTENTION_FACTOR)
    list_mscales = {rope.get(key) for key in LIST_MSCALES} - {None}
    if attention_factor is not None and list_mscales != {attention_factor}:
        has.add(ATTENTION_FACTOR)
    if positions == SWITCHED:
        has.add(SHORT_LIST)
    return Facts(
        model_type=plan.model_type,
        positions=positions,
        max_len=plan.max_len_after,
        lengths=lengths,
        values={key: f"{value:.15g}" for key, value in values.items()},
        has=frozenset(has),
        engine=checkpoint.engine,
    )


def _positions_of(change: Change) -> tuple[str, Parameters]:
    """Return the positions of an output as rules name them, and their rotary settings, if any."""
    positions = change.positions
    for layers in positions.layers:
        if layers.is_local or not positions.methods:
            continue
        after = change.settings.get(layers.layer_type, layers.parameters)
        name: str = after[TYPE]
        if not rotates(after):
            name = REMOVED
        elif has_switch_lists(after):
            name = SWITCHED
        elif name == "default":
            name = positions.unscaled_name
            if after[THETA] != layers.default_theta:
                name = RAISED_THETA
        return name, after
    return positions.unscaled_name or change.scheme, {}


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What an engine does with one folder, by a rule."""

    engine: Engine = field(metadata=not_in_json)
    outcome: Outcome
    length: int | None  # that it reads without an option, in tokens; None if it refuses
    option: str  # what to add to its command to serve the length right; may be empty
    reason: str  # why it refuses or ignores the positions; may be empty
    evidence: str  # ``run``, or the URL of what was read
    ignores: tuple[str, ...]  # what of the folder it does not read: ``short_factor``, …
    # Whether it reads the requested length right, if need be with its option.
    is_right: bool = field(metadata=not_in_json)

    json_properties: ClassVar = ("name", "version")

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.name

    @property
    def version(self) -> str:
        """The version that was run or read."""
        return self.engine.version


def statements(facts: Facts | None) -> tuple[Statement, ...]:
    """Return what each engine does with a folder, if a rule says it, in a fixed order.

    Args:
        facts: Those of the folder; None if no rule is about such folders.
    """
    found = list[Statement]()
    for engine in ENGINES.values():
        if facts is None or facts.engine not in (None, engine.key):
            continue
        for rule in engine.rules:
            is_about_type = not rule.types or facts.model_type in rule.types
            is_about_positions = not rule.positions or facts.positions in rule.positions
            if is_about_type and is_about_positions and rule.has <= facts.has:
                found.append(_statement(engine, rule, facts))
                break
    return tuple(found)


def _statement(engine: Engine, rule: Rule, facts: Facts) -> Statement:
    outcome = rule.outcome
    names = list(rule.options)
    can_be_right = outcome is Outcome.SERVES or bool(names)
    lengths = [facts.lengths[name] for name in rule.length if name in facts.lengths]
    length: int | None = next(iter(lengths), facts.max_len)
    if length != facts.max_len:
        if outcome is Outcome.SERVES:
            outcome = Outcome.DERIVES
        if can_be_right and "length" in engine.options:
            names.append("length")
    if outcome is Outcome.REFUSES:
        length = None
    option = " ".join(engine.options[name] for name in names).format(**facts.values)
    return Statement(
        engine=engine,
        outcome=outcome,
        length=length,
        option=option,
        reason=rule.reason,
        evidence=rule.evidence,
        ignores=tuple(name for name in rule.ignores if name in facts.has),
        is_right=outcome is Outcome.SERVES or bool(option),
    )


def engine_notes(plan: Plan, found: Sequence[Statement]) -> Iterator[Note]:
    """Yield which engines read the new length as the output is, and whose outputs differ.

    Those that fail or read less are not named, and only the requested one if there is one.

    Args:
        plan: What changes.
        found: What engines do with the output, by a rule.
    """
    right = [item for item in found if item.is_right]
    options = ""
    if plan.engine is None:
        names = [item.engine.name for item in right if item.outcome is Outcome.SERVES]
    else:
        right = [item for item in right if item.engine.key == plan.engine]
        names = [item.engine.name for item in right]
        options = "".join(f", with {item.option}" for item in right if item.option)
        if not names and plan.is_changed:
            text = (
                f"No rule says what {ENGINES[plan.engine].name} does with {plan.model_type} "
                "models: compare its outputs for long inputs with those of transformers."
            )
            yield Note(Code.ENGINE, Level.WARNING, text)
    if names:
        text = f"Reads {plan.max_len_after} tokens in {', '.join(names)}{options}."
        yield Note(Code.ENGINE, Level.NOTE, text)

    ignoring = [item for item in right if ATTENTION_FACTOR in item.ignores]
    if ignoring:
        ignores = "ignores" if len(ignoring) == 1 else "ignore"
        engines = joined([item.engine.name for item in ignoring])
        text = (
            f"The settings state an attention_factor, which {engines} {ignores}: outputs differ "
            "from those of transformers."
        )
        is_given = plan.settings.choice.settings.get(MSCALE) is not None
        if plan.engine is None and plan.method == SWITCH and not is_given:
            keys = " or ".join(item.engine.key for item in ignoring)
            text += f" --for {keys} states it as that engine reads it."
        yield Note(Code.ENGINE, Level.WARNING, text)
    names = [item.engine.name for item in right if SHORT_LIST in item.ignores]
    if names:
        gives = "gives" if len(names) == 1 else "give"
        text = (
            f"{joined(names)} {gives} every input the frequencies of long ones, so the outputs for "
            "short inputs change there."
        )
        yield Note(Code.ENGINE, Level.WARNING, text)
