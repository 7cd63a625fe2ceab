from __future__ import annotations

import pytest

from composer.core import Sharding


@pytest.mark.parametrize("sharding", Sharding)
def test_sharded_weights_are_rejected_only_if_full_weights_are_required(sharding):
    assert sharding.supports_sharded_weights == (sharding.value != "full_weights")
    assert Sharding(sharding.value) is sharding
