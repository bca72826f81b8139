"""Rotary positions: settings in the config, and no rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Self

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError, MethodError, ResizeError
from ctxextend.notes import Code, Level, Note
from ctxextend.positions.change import (
    Change,
    ShortInputs,
    limits_change,
)
from ctxextend.positions.facts import ROTARY, RotaryFacts
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import (
    ConfigValues,
    Keys,
    PositionComparison,
    PositionLengths,
    Positions,
    nested,
    with_values,
)
from ctxextend.positions.rotary_compare import compare_settings
from ctxextend.positions.rotary_dialects import (
    ADDED,
    old_keys,
    state_settings,
    stated_dialects,
)
from ctxextend.positions.rotary_lengths import layer_lengths
from ctxextend.positions.rotary_settings import (
    RopeLayers,
    positions_of_copies,
    read_layers,
    rotary_dim,
)
from ctxextend.positions.unlimited import Unlimited
from ctxextend.provenance import Step
from ctxextend.settings import Resize
from ctxextend.tables.frequencies import Frequencies, frequencies
from ctxextend.tables.method_facts import (
    DEFAULT_METHOD,
    FOLLOWING_METHODS,
    LIMITS,
    SCALING_METHODS,
    SWITCH,
    MethodChoice,
)
from ctxextend.tables.no_rotation import REMOVING_METHODS, none
from ctxextend.tables.rope_types import (
    KEPT_TYPES,
    LLAMA_4_BETA,
    NEW,
    NONE,
    OLD,
    TRAINED,
    TYPE,
    Parameters,
    rope_type,
    rotates,
)
from ctxextend.tables.rotary_methods import (
    RopeLengths,
    resize_rope,
)

KEEPING_METHODS = (LIMITS, "longrope")  # which give no input other angles


@dataclass(frozen=True, kw_only=True)
class Rotary(Positions):
    """Rotary positions: settings in the config, and no rows."""

    rope: RotaryFacts
    # They ``fail`` if the angles are computed once.
    longer_inputs: str = "reach untrained angles"
    settings_key: str = NEW  # type: ignore[misc]

    scheme: ClassVar = ROTARY
    unscaled_name: ClassVar = "unscaled"

    @property
    def methods(self) -> tuple[str, ...]:  # type: ignore[override]
        """The methods that the classes apply; none if they ignore the settings."""
        if self.first_position == 0:
            return self.rope.methods
        return tuple(name for name in self.rope.methods if name not in FOLLOWING_METHODS)

    @cached_property
    def layers(self) -> tuple[RopeLayers, ...]:  # type: ignore[override]
        """The settings as transformers uses them, those of local layers last.

        Raises:
            CheckpointError: A setting is malformed, or two statements of it differ.
        """
        return read_layers(self)

    @property
    def scaled_layers(self) -> list[RopeLayers]:
        """The settings of the layers that see the whole input: only these can scale.

        There are none if the classes ignore the settings.
        """
        if not self.methods:
            return []
        return [layers for layers in self.layers if not layers.is_local]

    @cached_property
    def lengths(self) -> PositionLengths:  # type: ignore[override]
        """The lengths of the layers that serve the shortest length.

        Layers with a sliding window do not count, since they are not scaled.
        """
        lengths = [layer_lengths(self, layers) for layers in self.scaled_layers]
        if not lengths:
            stated = self.stated_length
            return PositionLengths(first_trained=stated, stated=stated, served=stated)
        return min(lengths, key=lambda item: item.served)

    @cached_property
    def dialects(self) -> tuple[str, ...]:  # type: ignore[override]
        """The dialects that state the settings, each completely; a GGUF file has none."""
        if not self.methods or not self.rope.has_dialects:
            return ()
        return stated_dialects(self)

    def values_for(
        self, settings: Mapping[str, Parameters], length: int | None = None
    ) -> ConfigValues:
        """Return the config values that give layers other settings, in both dialects.

        Copies of the settings get the length too, also those without one, since transformers asks
        for it next to scaled settings.

        Raises:
            CheckpointError: The config's own settings are malformed.
        """
        if not self.methods:
            return {}
        config = self.config
        if length is not None:
            values = dict.fromkeys(self.length_paths, self.key_value(length))
            config = with_values(config, values)
        changes = state_settings(self, settings, config)
        is_removed = settings and not any(map(rotates, settings.values()))
        if is_removed and self.stated(TRAINED) != self.lengths.first_trained:
            # No class reads it there for the rope types that rotate nothing:
            # ``standardize_rope_params`` of modeling_rope_utils.py in transformers.
            changes[self.paths_of(TRAINED)[-1]] = self.lengths.first_trained
        if length is not None:
            # Copies of the settings that state the old length, or none.
            key = self.effective_key
            for copied in positions_of_copies(self):
                path = (*copied.path, key)
                if nested(self.config, path) in (None, self.stated(key)):
                    changes[path] = self.key_value(length)
        return changes

    def reason_to_state(self, path: Keys) -> str:
        """Return that a value states the settings in the dialect that the config did not use."""
        is_old = bool(self.stated(OLD))
        if is_old and self.stated(NEW):
            return ""
        other_dialect = [NEW] if is_old else [*old_keys(self), TRAINED]
        is_added = any(
            path[: len(keys)] == keys for name in other_dialect for keys in self.paths_of(name)
        )
        return ADDED if is_added and nested(self.config, path) is None else ""

    def as_none_if_unrotated(self) -> Positions:
        """Return positions of scheme ``none`` instead if the settings rotate nothing."""
        try:
            is_removed = bool(self.methods) and not any(
                rotates(layers.parameters) for layers in self.layers
            )
        except CheckpointError:  # reported when the settings are used
            return self
        if not is_removed:
            return self
        shared = {item.name: getattr(self, item.name) for item in fields(Positions) if item.init}
        rope_types = frozenset(layers.parameters[TYPE] for layers in self.layers)
        shared |= {"longer_inputs": "run", "dialects": self.dialects, "rope_types": rope_types}
        return Unlimited(**shared, scheme=NONE)

    def frequencies(self, parameters: Parameters, tokens: int) -> Frequencies:
        """Return the frequencies of settings in inputs of a number of tokens."""
        stated = self.value(self.effective_key)
        return frequencies(parameters, rotary_dim(self, parameters), stated, tokens)

    def notes(self, change: Change, *, generates: bool) -> Iterator[Note]:
        """Yield what to know of inputs that cross the old length, and of attention windows.

        Transformers chooses frequencies that follow the length by the longest sequence of each
        call. Where SmolLM2-135M crosses the trained length, its perplexity rises 55 times with
        `switch`, and by 78 % with `dynamic`, whose frequencies move less at once: docs/results.md.
        """
        becomes_dynamic = any(
            after[TYPE] == "dynamic" and layers.parameters[TYPE] != "dynamic"
            for layers, after in change.changed_layers
        )
        if change.switches or becomes_dynamic:
            length = change.same_up_to
            text = (
                f"An input of up to {length} tokens gets the frequencies of long ones in a batch "
                "with a longer one: batch them apart."
            )
            yield Note(Code.PADDING, Level.NOTE, text)
            effect = "turns into noise, since its cached keys have the frequencies of short inputs"
            if becomes_dynamic:
                effect = "gets worse, since its cached keys have the frequencies of shorter inputs"
            if generates and (becomes_dynamic or not self.rope.drops_cache):
                text = (
                    f"A text that grows past {length} tokens in generate() {effect}: use --method "
                    "yarn for such texts."
                )
                yield Note(Code.GENERATION, Level.WARNING, text)

        window = self.stated("sliding_window")
        is_used = self.stated("use_sliding_window") is not False
        sees_windows = self.rope.windows_all_layers and not self.stated("layer_types")
        if isinstance(window, int) and is_used and sees_windows:
            text = (
                f"All layers see {window} tokens (sliding_window): {self.name} does not make them "
                "see further."
            )
            yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)

    def compare(self, change: Change, now: Self) -> PositionComparison:
        """Compare the settings of a checkpoint, and their frequencies, with those of a change."""
        result = compare_settings(change, now)
        if not change.settings and not result.faults:
            return super().compare(change, now)
        return result

    def settings_paths(self, change: Change) -> list[Keys]:
        """Return the paths of the keys that state the settings, in both dialects."""
        keys = [NEW, *old_keys(self)]
        settings = [*change.settings.values(), *(layers.parameters for layers in self.layers)]
        if any(rope_type(item).states_trained for item in settings):
            keys.append(TRAINED)
        return [path for key in keys for path in self.paths_of(key)]

    def report(
        self, checkpoint: Checkpoint, recipe: Step | None, parameters: int
    ) -> PositionReport:
        """Return the lengths, and the wavelengths of all layers if the classes read settings."""
        from ctxextend.positions.rotary_report import report_rotary

        return report_rotary(self, recipe)

    # What a resize changes

    def change(self, settings: Resize, after: int, *, has_others: bool = False) -> Change:
        """Return the change to another length.

        Args:
            settings: With the method that applies to these positions.
            after: The length, in tokens.
            has_others: Whether the model has other positions that a resize of them would change.

        Raises:
            MethodError: The method, or another setting, does not apply to these positions.
            ResizeError: The new length is shorter, or the old one is unknown.
        """
        self._check_settings(settings)
        lengths = self.lengths
        before = lengths.context
        is_corrected = any(map(self._is_corrected, self.scaled_layers))
        if lengths.question and not (after == before and settings.fix_limits and not is_corrected):
            raise ResizeError(f"{self.file}: {lengths.question}.", f"Pass {lengths.answer}.")
        change = limits_change(self, settings, after, has_others=has_others)
        if not self.scaled_layers or (after == before and not is_corrected):
            return change
        choices = dict[str, MethodChoice]()
        resized = dict[str, Parameters]()
        stated_after = after
        for layers in self.scaled_layers:
            parameters, choice = self._resize_layers(layers, settings, after)
            kind = layers.layer_type
            choices[kind] = choice
            resized[kind] = parameters
            # A file whose key states the first trained length keeps this convention.
            is_key_kept = layer_lengths(self, layers).key_is_first_trained
            if choice.facts.keeps_max_len or is_key_kept:
                stated_after = lengths.first_trained
        first = choices[self.scaled_layers[0].layer_type]
        reasons = dict.fromkeys(choice.reason for choice in choices.values() if choice.reason)
        change = replace(
            change,
            choice=replace(first, reason="; ".join(reasons)),
            settings=resized,
            stated_after=stated_after,
        )

        return self._with_short_inputs(change, choices)

    def _with_short_inputs(self, change: Change, choices: Mapping[str, MethodChoice]) -> Change:
        """Return a change with what its settings give inputs up to the old length."""
        scales = False
        worst = ShortInputs.IDENTICAL
        same_up_to = change.max_len_before
        for layers in self.scaled_layers:
            old = layers.parameters
            new = change.settings[layers.layer_type]
            if old[TYPE] == "dynamic":
                same_up_to = min(self.lengths.stated, change.stated_after)
            choice = choices[layers.layer_type]
            if new != old and choice.name not in KEEPING_METHODS:
                scales = True
                worst = max(worst, self._short_inputs(old, new, choice))
        switched = [kind for kind, choice in choices.items() if choice.name == SWITCH]
        if switched:
            same_up_to = min(change.settings[kind][TRAINED] for kind in switched)
        return replace(
            change,
            scales=scales,
            short_inputs=worst,
            same_up_to=same_up_to,
            switches=bool(switched),
        )

    def _check_settings(self, settings: Resize) -> None:
        name = settings.choice.name
        applicable = self.methods
        if not applicable and name in SCALING_METHODS:
            model_type = self.family.model_type
            message = (
                f"--method {name}: {model_type} models ignore rotary settings in transformers."
            )
            raise MethodError(message, "Remove --method: only length limits change.")
        # The method of a scaled model is called like its rope type; `resize_rope` checks that the
        # model has this type.
        if applicable and name not in (DEFAULT_METHOD, LIMITS, *applicable, *KEPT_TYPES):
            message = f"--method {name} does not apply to rotary positions."
            raise MethodError(message, f"Use one of {', '.join(applicable)}.")

    def _is_corrected(self, layers: RopeLayers) -> bool:
        given = self.trained_length
        if given is None or not rope_type(layers.parameters).states_trained:
            return False
        return bool(given != round(layers.parameters[TRAINED]))

    def hint_to_shorten(self, after: int) -> str:
        """Return what to do instead of a resize to a length that the model already accepts."""
        if any(layers.parameters[TYPE] != "default" for layers in self.layers):
            return f"If it was resized, resize its base to {after}."
        return super().hint_to_shorten(after)

    def _resize_layers(
        self, layers: RopeLayers, settings: Resize, after: int
    ) -> tuple[Parameters, MethodChoice]:
        """Return new settings of the layers of one type, and the method.

        Raises:
            MethodError: The method does not apply to the settings.
            ResizeError: The settings cannot serve the length.
        """
        kind = rope_type(layers.parameters)
        if kind.is_trained_fixed and self._is_corrected(layers):
            stated = round(layers.parameters[TRAINED])
            message = (
                f"--trained-length {self.trained_length}: {kind.name} settings state {stated}, "
                "which is part of their formula."
            )
            raise MethodError(message, f"Pass --trained-length {stated}, or remove it.")
        lengths = layer_lengths(self, layers)
        rope_lengths = RopeLengths(lengths.first_trained, lengths.served, after)
        dim = rotary_dim(self, layers.parameters)
        parameters, choice = resize_rope(
            layers.parameters,
            rope_lengths,
            dim,
            name=settings.choice.name,
            given=settings.choice.settings,
            methods=self.methods,
            is_corrected=self._is_corrected(layers),
        )
        self._check_query_scaling(layers.parameters, parameters)
        if not self.rope.has_dialects and parameters[TYPE] == "linear":
            # Nothing reads it there, but a later resize knows it from the file.
            trained = parameters.get(TRAINED, lengths.first_trained)
            parameters = {**parameters, TRAINED: trained}
        is_key_kept = choice.name == LIMITS and lengths.key_is_first_trained
        if is_key_kept and after > lengths.served:
            message = (
                f"--method {LIMITS} cannot state {after} tokens: {self.effective_key} "
                f"{lengths.stated} is the length before scaling, and the {kind.name} settings "
                f"serve {lengths.served}."
            )
            hint = f"Remove --method {LIMITS}, or use --to {lengths.served} or fewer."
            raise ResizeError(message, hint)
        return parameters, choice

    def _check_query_scaling(self, before: Parameters, after: Parameters) -> None:
        """Raise MethodError if settings that get a first trained length move the query scaling.

        ``llama_4_scaling_beta`` scales queries by how often their position contains that length, so
        it belongs to the trained model: ``get_llama_4_attn_scale`` of
        https://github.com/huggingface/transformers/blob/main/src/transformers/models/ministral3/modeling_ministral3.py.
        """
        stated = before.get(TRAINED)
        scales_queries = bool(before.get(LLAMA_4_BETA)) and stated is not None
        gets_trained = not rope_type(before).states_trained
        moves = scales_queries and gets_trained and after.get(TRAINED) != stated
        if not moves:
            return
        message = (
            f"{after[TYPE]} settings would state {TRAINED} {after[TRAINED]} instead of {stated}, "
            f"by which {LLAMA_4_BETA} scales queries."
        )
        methods = [name for name in ("theta", LIMITS) if name in (*self.methods, LIMITS)]
        hint = (
            f"Use --method {' or '.join(methods)}, or pass --trained-length {stated} if the first "
            f"training read {stated} tokens."
        )
        raise MethodError(message, hint)

    def _short_inputs(
        self, before: Parameters, after: Parameters, choice: MethodChoice
    ) -> ShortInputs:
        """Return what scaled settings give inputs up to the old length.

        Lists of factors that are 1 give exactly the frequencies of unscaled settings. Others give
        those of scaled settings by another order of float32 operations.
        """
        if not choice.facts.keeps_learned_rows:
            return ShortInputs.CHANGED
        if choice.name != SWITCH:
            return ShortInputs.IDENTICAL
        old, new = (self.frequencies(settings, 1) for settings in (before, after))
        if old.attention_factor != new.attention_factor:
            return ShortInputs.CHANGED
        return ShortInputs.IDENTICAL if before[TYPE] == "default" else ShortInputs.ROUNDED

    def change_to_none(self, after: int, source: str) -> Change:
        """Return the change to settings that rotate nothing, in all layers.

        Layers with a sliding window lose their rotation too, as in DroPE (Gelberg et al. 2025,
        arXiv:2512.12167); the window stays. The rope type is ``linear`` where the classes apply it,
        since other readers know it too: ``proportional`` with no rotated pair is refused by
        transformers 4, and ignored by llama.cpp and mlx-lm, which then rotate.

        Raises:
            MethodError: The classes apply neither, or queries are scaled by their position.
        """
        model_type = self.family.model_type
        hint = "Resize it instead, with ctxextend resize."
        if any(layers.parameters.get(LLAMA_4_BETA) for layers in self.layers):
            message = (
                f"--scheme {NONE}: {LLAMA_4_BETA} scales the queries of {model_type} models by "
                "their position, which would stay."
            )
            raise MethodError(message, hint)
        kinds = [name for name in ("linear", "proportional") if name in self.methods]
        if not kinds:
            applied = "no rotary settings"
            if self.methods:
                applied = f"only {', '.join(self.methods)}"
            message = (
                f"--scheme {NONE}: {model_type} models apply {applied} in transformers, so that "
                "nothing stops the rotation."
            )
            raise MethodError(message, hint)
        settings = {layers.layer_type: none(layers.parameters, kinds[0]) for layers in self.layers}
        return Change(
            positions=self,
            max_len_before=self.lengths.context,
            max_len_after=after,
            stated_after=after,
            choice=MethodChoice(REMOVING_METHODS[NONE]),
            short_inputs=ShortInputs.CHANGED,
            same_up_to=self.lengths.context,
            settings=settings,
            scales=True,
        )
