import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ctxextend.tables.medians import median


@settings(deadline=None)
@given(arrays.arrays(st.sampled_from([np.float32, np.float64]), arrays.array_shapes(max_dims=2, min_side=0)))
def test_median_is_that_of_numpy(values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_equal(median(values), float(np.median(values)))
