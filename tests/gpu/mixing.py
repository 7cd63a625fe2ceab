"""Tests that ``tests/test_on_device.py`` runs by name: one is wrong on any device but the CPU, one lacks a package."""

from __future__ import annotations

from tests.common import Regression, regression_data, trainer_of


def test_mixes() -> None:
    model = Regression()
    trainer_of(model).fit()
    model(regression_data()[0])


def test_lacks() -> None:
    __import__("a_package_that_is_not_there")
