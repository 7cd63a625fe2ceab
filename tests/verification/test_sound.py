"""Sound trainers: the same number is the same trainer, they train without a warning, and pass the checks."""

from __future__ import annotations

import pytest
import torch

from composer.core.traits import traits_of
from tests.verification import sound
from tests.verification.evidence import DIFFERS, run
from tests.verification.sound import COUNT, describe, sound_case

_SOME = range(10)  # one of each family


@pytest.mark.parametrize("number", _SOME)
def test_trains_eight_steps_the_same_each_time(number):
    first, second = (run(getattr(sound, f"case_{number}"), max_duration="8ba") for _ in range(2))
    assert len(first.losses) == 8
    assert first.equals(second)


@pytest.mark.parametrize("number", [0, 2, 3])
def test_resumes_exactly(number):
    assert not DIFFERS["resume"](getattr(sound, f"case_{number}"))


def test_cases_differ_and_are_small():
    described = {describe(number) for number in range(0, COUNT, 10)}
    assert len(described) > COUNT // 10 * 0.9
    for number in _SOME:
        parameters = sound_case(number).state.model.parameters()
        assert sum(each.numel() for each in parameters) <= 10_000
    assert not torch.distributed.is_initialized()


def test_methods_of_a_case_do_not_conflict():
    for number in range(1, COUNT, 20):
        methods = sound_case(number).state.algorithms
        names = [type(method).__name__ for method in methods]
        assert len(set(names)) == len(names)
        for method in methods:
            assert not set(traits_of(method).conflicts_with) & set(names), describe(number)


@pytest.mark.parametrize("name", ["case_200", "case_-1", "case_x", "other"])
def test_unknown_case_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match="case_0 to case_199"):
        getattr(sound, name)


def test_number_out_of_range_is_an_error():
    with pytest.raises(ValueError, match="from 0 to 199; got 200"):
        sound_case(200)
