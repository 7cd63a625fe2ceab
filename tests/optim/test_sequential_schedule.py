"""One schedule after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.optim.scheduler import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    ReduceOnPlateauScheduler,
    SequentialScheduler,
    StepScheduler,
    WarmupStableDecayScheduler,
)
from tests.optim.schedules import rates, state_of

up, down, flat = LinearScheduler(0, 1), LinearScheduler(), ConstantScheduler()


@given(cuts=st.lists(st.integers(0, 30), min_size=2, max_size=2).map(sorted))
def test_each_part_is_a_run_of_its_own(cuts) -> None:
    first, second = cuts
    found = SequentialScheduler([up, down, CosineAnnealingScheduler()], [f"{first}ba", f"{second}ba"]).preview("40ba")
    parts = [(up, first), (down, second - first), (CosineAnnealingScheduler(), 40 - second)]
    expected = [value for schedule, length in parts for value in schedule.preview(f"{length}ba")[:-1]] + [0.0]
    assert found == pytest.approx(expected)


def test_a_sum_begins_where_the_term_before_ends() -> None:
    found = (LinearScheduler(0, 1, t_max="2ba") + ConstantScheduler(t_max="0.5dur") + down).preview("10ba")
    assert found == pytest.approx([0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_a_sum_is_associative() -> None:
    a, b, c = LinearScheduler(0, 1, "0.25dur"), ConstantScheduler(t_max="4ba"), CosineAnnealingScheduler()
    assert len((a + (b + c)).schedules) == 3
    assert ((a + b) + c).preview("24ba") == (a + (b + c)).preview("24ba")
    nested = SequentialScheduler([up, SequentialScheduler([b, c], "4ba")], "0.25dur")
    assert nested.preview("24ba") == (a + b + c).preview("24ba")


def test_warmup_stable_decay_is_a_sum() -> None:
    total = LinearScheduler(0, 1, "5ba") + ConstantScheduler(t_max="10ba") + down
    assert total.preview("20ba") == pytest.approx(WarmupStableDecayScheduler("5ba", "5ba", "linear").preview("20ba"))


def test_a_schedule_with_warmup_may_end_early_where_another_follows() -> None:
    early = CosineAnnealingWithWarmupScheduler("2ba", t_max="6ba", alpha_f=0.5)
    assert (early + ConstantScheduler(0.5)).preview("10ba") == pytest.approx([*early.preview("6ba"), *[0.5] * 3, 1.0])
    assert SequentialScheduler([flat.with_warmup("2ba"), down], "3ba").preview("5ba") == [0, 0.5, 1, 1, 0.5, 0]
    assert (LinearScheduler(1, 0.5, "2ba").with_warmup("2ba") + flat).preview("5ba") == [0, 0.5, 1, 0.75, 1, 1]


def test_other_units() -> None:
    tokens = LinearScheduler(0, 1, "32tok") + LinearScheduler()
    expected = [k / 4 for k in range(4)] + [1 - k / 6 for k in range(6)]
    assert rates(tokens, state_of("80tok"), 10) == pytest.approx(expected)
    epochs = SequentialScheduler([flat, StepScheduler("1ep", gamma=0.5)], ["1ep"])
    assert epochs.preview("4ep") == epochs.preview("8ba", epoch_length=2)[::2] == [1, 1, 0.5, 0.25, 0.125]


def test_ratios() -> None:
    total = LinearScheduler(0, 1, "4ba") + StepScheduler("2ba", gamma=0.5)
    assert total.preview("5ba", ssr=0.5) == [0, 0.5, 1, 0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (up + down, r"LinearScheduler\(alpha_i=1.0, .*\) would never begin: the schedules before it last until 10ba"),
        (SequentialScheduler([up, down], "11ba"), "would never begin"),
        (SequentialScheduler([up, down], "1.0dur"), "would never begin"),
        (SequentialScheduler([up, down, flat], ["4ba", "3ba"]), "not decrease, but got '4ba', '3ba'"),
        (SequentialScheduler([up, down, flat], ["4ba", "90tok"]), "counted in one unit and not decrease, but got"),
        (SequentialScheduler([up, StepScheduler("5tok")], "4ba"), "'5tok' counts from a time given in 'ba'"),
        (StepScheduler("1ba") + down, "StepScheduler has no end"),
        (flat.with_warmup("9ba") + down, "would never begin"),
    ],
)
def test_what_does_not_fit(schedule, message) -> None:
    with pytest.raises(ValueError, match=message):
        schedule.preview("10ba")


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="schedules must hold at least one schedule"):
        SequentialScheduler([])
    with pytest.raises(TypeError, match="schedules: every entry must be a ComposerScheduler, but got <function"):
        SequentialScheduler([up, lambda state: 1.0], ["1ba"])
    with pytest.raises(ValueError, match="when each schedule but the first begins: 1 for 2 schedules, but got 2"):
        SequentialScheduler([up, down], ["1ba", "2ba"])
    assert SequentialScheduler([down]).preview("4ba") == down.preview("4ba")


def test_state_of_the_parts() -> None:
    def make():
        plateau = ReduceOnPlateauScheduler("eval/Accuracy", "max", patience=0, factor=0.5)
        return plateau, LinearScheduler(0, 1, "2ba") + plateau.with_warmup("1ba")

    first, total = make()
    for value in (0.5, 0.5):
        first.update(value)
    second, other = make()
    other.load_state_dict(total.state_dict())
    assert (second.multiplier, second.best) == (0.5, 0.5)
    assert (up + down).state_dict() == {}
    with pytest.raises(ValueError, match=r"saved schedule has 2 child schedules, but SequentialScheduler.* has 1"):
        SequentialScheduler([up]).load_state_dict(total.state_dict())
