from __future__ import annotations

import math

import pytest

from composer.reports.comparison_text import mean_text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([math.inf], "inf"),
        ([-math.inf, -math.inf], "-inf"),
        ([math.inf, -math.inf], "nan"),
        ([math.inf, math.nan], "nan"),
        ([math.inf, None], "inf"),
        ([None, None], "none"),
        ([math.inf, 0.5], "0.5 (1 of 2 runs)"),
    ],
)
def test_values_that_are_not_finite(values: list[float | None], text: str) -> None:
    assert mean_text(values) == text
