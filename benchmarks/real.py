"""Compare methods on real checkpoints, and on small ones trained with seeds that were fixed before any was scored."""

__all__ = ["JUDGED"]

BYTES = "tiny_gpt2.py --vocabulary 257 --batch 8 --dropout 0 --steps 3000"

# Script in recipes/from_scratch and its arguments, by name. No decision about a method was made on these.
JUDGED = {
    "judge-words": "tiny_gpt2.py --batch 8 --dropout 0 --steps 3000 --seed 31",
    "judge-bytes": f"{BYTES} --waves --layers 3 --seed 32",
    "judge-masked": "mini_bert.py --seed 33",
}
