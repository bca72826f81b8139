"""The settings that YaRN leaves open, and those of each method that a search may change."""

from collections.abc import Mapping

from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.rope_types import ATTENTION_FACTOR, BETA_FAST, BETA_SLOW

# In the order of the search.
OPEN_SETTINGS = (BETA_SLOW, ATTENTION_FACTOR, BETA_FAST)
# By method. `switch` keeps the attention factor, which inputs up to the old length share.
OPEN_IN: Mapping[str, tuple[str, ...]] = {
    "yarn": OPEN_SETTINGS,
    SWITCH: (BETA_SLOW, BETA_FAST),
}
