"""Table 4: columns of MAD."""

import numpy as np

from anchorlm.reproduce import claims, table4


def test_columns_of_mad_are_compared_seed_by_seed():
    def verdict(first, second):
        pair = [values and {"mean": np.mean(values), "deviation": None, "values": values} for values in (first, second)]
        return table4._higher(*pair, "", "")["verdict"]

    assert verdict([0.9, 0.8], [0.7, 0.7]) == claims.AGREES and verdict([0.5, 0.6], [0.7, 0.7]) == claims.NOT
    assert verdict([0.9, 0.6], [0.7, 0.7]) == claims.UNCLEAR and verdict(None, [0.7]) == claims.NOT_COMPARABLE
