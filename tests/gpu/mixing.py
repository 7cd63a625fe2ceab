"""For ``tests/test_on_device.py``: one is wrong on any device but the CPU, one lacks a package, one is broken."""

from __future__ import annotations

from tests.common import Regression, regression_data, trainer_of


def test_mixes() -> None:
    model = Regression()
    trainer_of(model).fit()
    model(regression_data()[0])


def test_lacks() -> None:
    __import__("transformer_engine")  # which needs CUDA, so that no environment of the suite has it


def test_breaks() -> None:
    __import__("a_module_of_ours_that_is_not_there")
