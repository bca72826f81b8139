"""Texts with needles, and the questions about them."""

from dataclasses import replace

import numpy as np
import pytest

from ctxextend.lab.needle_text import (
    KEY,
    MASKED_FORM,
    NEEDLE,
    NEEDLES_FORM,
    POINTERS_FORM,
    SOLVED,
    TRACKING,
    NeedleForm,
    NeedleTexts,
)
from ctxextend.lab.needles import NeedleWords

FIRST_WORD = 1000  # token of the first word; the haystack has tokens from 10 to 99
WORDS = NeedleWords(
    before=np.array([0]),
    between=np.array([1]),
    after=np.array([2]),
    as_key=np.arange(FIRST_WORD, FIRST_WORD + 300),
    as_value=np.arange(2 * FIRST_WORD, 2 * FIRST_WORD + 300),
    key_words=1,
)
HAYSTACK = np.random.default_rng(0).integers(10, 100, 2000)
FORMS = {"needles": NEEDLES_FORM, "pointers": POINTERS_FORM, "masked": MASKED_FORM}
EACH_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def texts(form: NeedleForm = NEEDLES_FORM, needles: int = 8, seed: int = 0) -> NeedleTexts:
    return NeedleTexts(words=WORDS, haystack=HAYSTACK, needles=needles, seed=seed, form=form)


def statements(ids: list[int]) -> list[tuple[int, int, int]]:
    """Return where each line of a text starts in its haystack, and its key and its value."""
    found = list[tuple[int, int, int]]()
    haystack = 0
    index = 0
    while index < len(ids):
        if ids[index] != 0:
            haystack += 1
            index += 1
            continue
        _, key, between, value, after = ids[index : index + 5]
        assert (between, after) == (1, 2)
        found.append((haystack, key, value))
        index += 5
    return found


@EACH_FORM
def test_text_is_shorter_by_its_questions(form: NeedleForm) -> None:
    text = texts(form).text(400, 0)
    tokens = len(text.ids)
    if form.is_masked:
        tokens += sum(len(question.ids) + 2 for question in text.questions)
    else:
        tokens += max(len(question.ids) for question in text.questions)
    assert tokens == 400
    assert len(text.questions) == 8


def test_text_spreads_needles_evenly_from_start_to_end() -> None:
    lines = statements(texts().text(400, 0).ids.tolist())
    size = 400 - 8 * 5 - 3
    assert [position for position, _, _ in lines] == [round(index / 7 * size) for index in range(8)]
    assert [question.depth for question in texts().text(400, 0).questions] == pytest.approx(
        [index / 7 for index in range(8)]
    )


def test_questions_ask_for_the_values_of_their_needles() -> None:
    text = texts().text(400, 0)
    values = {key: value for _, key, value in statements(text.ids.tolist())}
    assert len(values) == len(set(values.values())) == 8
    for question in text.questions:
        before, key, between = question.ids.tolist()
        assert (before, between) == (0, 1)
        assert question.answer == values[key]
        others = set(values.values()) - {question.answer}
        assert set(question.rivals[KEY].tolist()) == others
        absent = set(question.rivals[NEEDLE].tolist())
        assert len(absent) == 9
        assert absent.isdisjoint(text.ids.tolist())
        assert question.labels.tolist() == [
            question.answer,
            *question.rivals[NEEDLE],
            *question.rivals[KEY],
        ]


def test_pointers_follow_their_needles_and_are_asked_after_solved_chains() -> None:
    text = texts(POINTERS_FORM).text(600, 0)
    lines = statements(text.ids.tolist())
    order = {key: index for index, (_, key, _) in enumerate(lines)}
    values = {key: value for _, key, value in lines}
    assert len(values) == 16

    def follow(pointer: int) -> int:
        key = values[pointer] - FIRST_WORD  # its value is the key, as a value
        assert order[key] < order[pointer]
        return values[key]

    for question in text.questions:
        *solved, _, pointer, between = question.ids.tolist()
        assert between == 1
        assert question.answer == follow(pointer)
        demonstrations = statements(solved)
        assert len(demonstrations) == SOLVED
        for _, other, value in demonstrations:
            assert value == follow(other)
            assert other != pointer
        rivals = set(question.rivals[TRACKING].tolist())
        assert len(rivals) == 8 - 1 - SOLVED
        assert question.answer not in rivals
        assert rivals.isdisjoint(value for _, _, value in demonstrations)


def test_text_avoids_words_of_the_haystack() -> None:
    present = WORDS.as_value[:200]
    text = replace(texts(), haystack=np.concatenate([present, HAYSTACK])[:297]).text(340, 0)
    for _, key, value in statements(text.ids.tolist()):
        assert key >= FIRST_WORD + 200
        assert value >= 2 * FIRST_WORD + 200


def test_chances_follow_from_the_number_of_rivals() -> None:
    assert texts(needles=24).chances == {NEEDLE: 0.1, KEY: 0.1}
    assert texts(needles=6).chances == {NEEDLE: 0.1, KEY: pytest.approx(1 / 6)}
    assert texts(POINTERS_FORM, needles=6).chances == {TRACKING: pytest.approx(1 / 4)}
    assert texts(POINTERS_FORM, needles=24).chances == {TRACKING: 0.1}
