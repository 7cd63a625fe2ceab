from __future__ import annotations

import pytest

from composer.core import Sharding


@pytest.mark.parametrize("sharding", Sharding)
def test_sharded_weights_are_refused_only_by_full_weights(sharding):
    assert sharding.supports_sharded_weights == (sharding.value != "full_weights")
    assert Sharding(sharding.value) is sharding
