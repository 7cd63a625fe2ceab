"""The held-out programs can be built, and what is expected of them can be said."""

from __future__ import annotations

from types import ModuleType
from typing import get_args

import pytest

from composer.diagnosis.verdict import Cause
from tests.diagnosis import fresh, unusual

SETS = (fresh, unusual)


@pytest.mark.parametrize(
    ("programs", "name"), [(each, name) for each in SETS for name in [*each.EXPECTED, *each.HEALTHY]]
)
def test_program_is_built(programs: ModuleType, name: str) -> None:
    trainer = getattr(programs, name)()
    assert trainer.state.train_dataloader is not None
    trainer.close()


def test_expected_causes_exist() -> None:
    assert {cause for each in SETS for cause, _ in each.EXPECTED.values()} <= set(get_args(Cause)) - {"none"}
