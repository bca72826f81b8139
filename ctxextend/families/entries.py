"""The registry: one literal a family, facts only, named as transformers names them."""

from collections.abc import Mapping

from ctxextend.families.schema import Buffer, Family, Offset, Table

__all__ = ["FAMILIES"]

BERT_LIKE_BUFFERS = (Buffer("embeddings.position_ids", "arange"), Buffer("embeddings.token_type_ids", "zeros"))

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            model_type="bert",
            prefixes=("", "bert."),
            tables=(Table("embeddings.position_embeddings.weight", "max_position_embeddings"),),
            buffers=BERT_LIKE_BUFFERS,
            defaults={"max_position_embeddings": 512},
            requires={"position_embedding_type": "absolute"},
        ),
        Family(
            model_type="gpt2",
            prefixes=("", "transformer."),
            # transformers' `attribute_map` writes max_position_embeddings, where a file has it, over n_positions.
            tables=(Table("wpe.weight", "n_positions", aliases=("max_position_embeddings",), unused_keys=("n_ctx",)),),
            buffers=(Buffer("h.*.attn.bias", "mask"), Buffer("h.*.attn.masked_bias", "mask")),
            defaults={"n_positions": 1024},
            requires={},
        ),
        Family(
            model_type="roberta",
            prefixes=("", "roberta."),
            tables=(
                Table(
                    "embeddings.position_embeddings.weight",
                    "max_position_embeddings",
                    # Position 0 stands behind the padding row: fairseq's `utils.make_positions`.
                    offset=Offset(rows=1, config_key="pad_token_id", inside_key=True),
                ),
            ),
            buffers=BERT_LIKE_BUFFERS,
            defaults={"max_position_embeddings": 512, "pad_token_id": 1},
            requires={"position_embedding_type": "absolute"},
        ),
    )
}
