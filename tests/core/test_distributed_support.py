from __future__ import annotations

import pytest

from composer.core import Sharding


@pytest.mark.parametrize("sharding", Sharding)
def test_only_those_that_need_whole_weights_refuse_divided_ones(sharding):
    assert sharding.supports_sharded_weights == (sharding.value != "whole_weights")
    assert Sharding(sharding.value) is sharding
