"""The held-out programs can be built, and what is expected of them can be said."""

from __future__ import annotations

from typing import get_args

import pytest

from composer.diagnosis.verdict import Cause
from tests.diagnosis import fresh


@pytest.mark.parametrize("name", [*fresh.EXPECTED, *fresh.HEALTHY])
def test_program_is_built(name: str) -> None:
    trainer = getattr(fresh, name)()
    assert trainer.state.train_dataloader is not None
    trainer.close()


def test_expected_causes_exist() -> None:
    assert {cause for cause, _ in fresh.EXPECTED.values()} <= set(get_args(Cause)) - {"none"}
