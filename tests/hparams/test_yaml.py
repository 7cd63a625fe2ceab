"""YAML from strangers: bounded, of plain values, and every mistake is one line without the text around it."""

from __future__ import annotations

import time

import pytest

from composer.hparams._yaml import load
from composer.hparams.config_tree import ConfigError, parse_value, read, with_value

LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))])
MERGES = "\n".join(
    ["m0: &m0 {x: 1}", *(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 12))]
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LAUGHS, "more than 100,000 values after its aliases are expanded in line"),
        (MERGES, "more than 100,000 values"),
        ("[" * 5000 + "]" * 5000, "nested more than 100 levels deep"),
        ("a: " + "{a: " * 200 + "1" + "}" * 200, "nested more than 100 levels deep"),
        ("a: &a [*a]", "an alias refers to a node that contains it"),
        ("a: &a {b: {c: *a}}", "an alias refers to a node that contains it"),
        ("a: 1\nb: 2\na: 3", "duplicate key 'a' in line 1"),
        ("x: {a: 1, a: 2}", "duplicate key 'a'"),
        ("a: !!python/object/apply:os.system ['touch here']", "could not determine a constructor for the tag"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: !!int x", "invalid YAML"),
        ("a: !!bool x", "invalid YAML"),
        ("a: !!timestamp x", "invalid YAML"),
        (f"a: {'1' * 5000}", "invalid YAML"),
        ("? [a]\n: 1", "unhashable key"),
        ("a: \0", "special characters are not allowed"),
        ("a: *b", "undefined alias"),
        ("{1: a, 0x1: b}", "duplicate key '0x1'"),
        ("{1: a, true: b}", "duplicate key 'true'"),
        ("{null: a, ~: b}", "duplicate key '~'"),
        (f"seed: 0x{'1' * 5000}", "'seed' has a number of more than 1000 digits"),
    ],
    ids=range(21),
)
def test_refused(text: str, told: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(ConfigError, match=told) as caught:
        parse_value(text)
    assert len(str(caught.value)) < 300
    assert time.perf_counter() - begun < 10


def test_aliases_and_merges_work() -> None:
    text = "base: &b {lr: 1, x: 2}\nouter: {inner: {mid: &m {<<: *b, lr: 2}}}\ntop: {<<: *m, y: 3}\nagain: [*b, *b]"
    found = load(text)
    assert found["outer"]["inner"]["mid"] == {"lr": 2, "x": 2}
    assert found["top"] == {"lr": 2, "x": 2, "y": 3}
    assert found["again"] == [{"lr": 1, "x": 2}] * 2


def test_many_keys_are_quick() -> None:
    begun = time.perf_counter()
    assert len(load("\n".join(f"k{n}: {n}" for n in range(5000)))) == 5000
    assert time.perf_counter() - begun < 10


def test_a_file_that_is_too_large(tmp_path) -> None:
    (tmp_path / "large.yaml").write_text("#" * 10_000_001)
    with pytest.raises(ConfigError, match="the limit is 10,000,000"):
        read(tmp_path / "large.yaml")


def test_a_place_that_is_too_deep() -> None:
    with pytest.raises(ConfigError, match="at most 100 components"):
        with_value({}, ".".join(["a"] * 5000), 1)


@pytest.mark.parametrize("text", ["a: *CANARY", "a: !CANARY x", "a: !c!CANARY x", "a: [*CANARY]", "a: !<CANARY> x"])
def test_what_may_be_a_secret_is_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid YAML: .* in line 1") as caught:
        parse_value(text)
    assert "CANARY" not in str(caught.value)
