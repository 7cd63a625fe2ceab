"""Sizes summed over modules."""

from __future__ import annotations

import random

import pytest

from composer.estimation.memory import by_module, size_text


def test_layers_that_differ_are_not_joined() -> None:
    sizes = {"net.0": 5, "net.1": 7, "blocks.0.a": 1, "blocks.1.b": 2}
    assert by_module(sizes, 10) == [("net.1", 7), ("net.0", 5), ("blocks.1.b", 2), ("blocks.0.a", 1)]


def test_nested_blocks_are_joined() -> None:
    sizes = {f"stages.{i}.blocks.{j}.conv": 1 for i in range(3) for j in range(4)}
    assert by_module(sizes, 5) == [("stages.0-2.blocks.0-3.conv", 12)]


def test_blocks_beside_other_layers_are_joined() -> None:
    sizes = {"0": 1, **{f"{i}.{name}": 1 for i in (1, 2, 3, 5) for name in ("up", "down")}, "3.norm": 1, "4": 1}
    assert by_module(sizes, 4) == [("1-3", 7), ("5", 2), ("0", 1), ("4", 1)]


def test_module_and_its_children() -> None:
    assert by_module({"a": 3, "a.b": 4, "": 1}, 5) == [("a.b", 4), ("a itself", 3), ("", 1)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost(seed: int) -> None:
    sample = random.Random(seed)
    parts = ["layers", "0", "1", "2", "up", "norm"]
    names = {".".join(sample.choices(parts, k=sample.randrange(5))) for _ in range(30)}
    sizes = {name: sample.randrange(1, 100) for name in names}
    for limit in (1, 2, 5, 100):
        found = by_module(sizes, limit)
        assert sum(size for _, size in found) == sum(sizes.values())
        assert len(found) <= limit
        assert len({name for name, _ in found}) == len(found)
        assert [size for _, size in found] == sorted((size for _, size in found), reverse=True)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (5 * 2**40, "5,120.00 GiB")]
)
def test_size_text(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
