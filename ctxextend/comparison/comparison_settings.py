"""What a comparison of methods compares, and how."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ctxextend.lab.eval_model import ENCODER
from ctxextend.settings import Compare, Evaluate
from ctxextend.tables.method_facts import DEFAULT_METHOD, MethodChoice
from ctxextend.tables.methods import METHODS, parse_method
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

EVERY_METHOD = "all"  # every method of the registry with its defaults
DEFAULT_MEASURES: tuple[str, ...] = ()  # all that apply, as in `Evaluate`


class CandidateRequest(NamedTuple):
    """A method to compare."""

    name: str  # with the settings that differ from its defaults
    method: MethodChoice
    # Whether it is left out if it does not apply to the checkpoint, which is else an error.
    can_be_skipped: bool


def evaluate_for(settings: Compare, kind: str, to: int) -> Evaluate:
    """Return the settings to evaluate a kind of model at a length."""
    evaluate: Evaluate = settings
    if settings.length:  # else the default lengths, of which `to` is one
        evaluate = replace(settings, to=to, length=(*settings.length, to))
    return with_ranking(evaluate, kind)


def with_ranking(settings: Evaluate, kind: str) -> Evaluate:
    """Return the settings with the measure that ranks a kind of models.

    The default measures include it, and a search set ranks by itself, as the effective length does
    if only this is measured.
    """
    is_complete = settings.measure == DEFAULT_MEASURES or settings.measures_effective_only
    if settings.search is not None or is_complete:
        return settings
    ranking = "retrieval" if kind == ENCODER else "position"
    return replace(settings, measure=(*settings.measure, ranking))


def read_methods(methods: Sequence[MethodChoice | str]) -> tuple[CandidateRequest, ...]:
    """Return the requested methods, each once; by default, and for ``all``, every method.

    Methods of ``all`` can be skipped, unless they are also requested by name.
    """
    requests = dict[str, CandidateRequest]()
    for method in methods or [EVERY_METHOD]:
        if isinstance(method, str):
            for name in (*METHODS, *ROTARY_METHOD_NAMES):
                if name != DEFAULT_METHOD:  # which chooses one of the others
                    request = CandidateRequest(name, parse_method(name), can_be_skipped=True)
                    requests.setdefault(name, request)
        else:
            requests[str(method)] = CandidateRequest(str(method), method, can_be_skipped=False)
    return tuple(requests.values())
