from __future__ import annotations

import pytest
import torch

from composer.export.samples import as_sample, checked_names, dynamic_shapes, names_of

X, Y = torch.zeros(2, 3), torch.ones(2)


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (X, (X,), {}),
        ([X, Y], ([X, Y],), {}),
        ({"x": X}, ({"x": X},), {}),
        ((X, Y), (X, Y), {}),
        ((X, {"y": Y}), (X,), {"y": Y}),
        (((X, Y), {}), ((X, Y),), {}),
        (({"x": X}, {}), ({"x": X},), {}),
        (({"x": X},), ({"x": X},), {}),
    ],
)
def test_the_arguments_of_a_call(given, args, kwargs) -> None:
    sample = as_sample(given)
    torch.testing.assert_close((sample.args, sample.kwargs), (args, kwargs))


def test_tensors_are_detached() -> None:
    (x,) = as_sample(X.clone().requires_grad_()).tensors
    assert not x.requires_grad


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (X, ["input"]),
        ((X, Y), ["input_0", "input_1"]),
        (((X, Y), {}), ["input_0", "input_1"]),
        ({"ids": X, "mask": Y}, ["ids", "mask"]),
        ({"ids": X, "n": 3}, ["ids"]),
        ((X, {"mask": Y}), ["input_0", "mask"]),
        ({"a": {"x": X}, "b": [X, Y]}, ["a_x", "b_0", "b_1"]),
        ([{"x": X}, {"x": Y}], ["input_0", "input_1"]),
    ],
)
def test_names(given, names: list[str]) -> None:
    assert as_sample(given).names == names


def test_names_are_one_for_each_tensor() -> None:
    assert names_of([], "output") == []
    assert checked_names("input_names", ("a", "b"), ["input_0", "input_1"]) == ["a", "b"]
    with pytest.raises(ValueError, match="output_names='ab' must be a list with one name for each of 2 outputs"):
        checked_names("output_names", "ab", ["output_0", "output_1"])


def test_sizes_that_vary() -> None:
    from torch.export import Dim

    sample = as_sample((X, Y))
    dims = dynamic_shapes(sample, ["x", "y"], {"x": {0: "n", 1: "c"}, "y": [0], "out": {0: "n"}}, ["out"])
    assert dims == {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}}
    assert dynamic_shapes(sample, ["x", "y"], {}) == {}
    assert dynamic_shapes(as_sample((X, torch.tensor(1.0))), ["x", "y"], None) == {"x": {0: Dim.AUTO}}
