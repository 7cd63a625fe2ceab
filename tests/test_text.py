"""Checks of arguments and the warnings."""

from __future__ import annotations

import pickle
import warnings

import pytest

from composer._text import did_you_mean, is_slip, one_of, plural
from composer.warnings import ComposerWarning, NoEffectWarning, NotIntendedUseWarning, VersionedDeprecationWarning


@pytest.mark.parametrize(
    ("name", "hint"),
    [("adma", " Did you mean 'Adam'?"), ("ADAM", " Did you mean 'Adam'?"), ("zzz", ""), ("", "")],
)
def test_did_you_mean(name, hint):
    assert did_you_mean(name, ["SGD", "Adam"]) == hint


def test_did_you_mean_prefers_matching_case():
    names = ["Trainer", "trainer"]
    assert did_you_mean("Trainr", names) == " Did you mean 'Trainer'?"
    assert did_you_mean("trainr", names) == " Did you mean 'trainer'?"


def test_one_of():
    assert one_of("mode", "min", ("min", "max")) == "min"
    assert one_of("size", 2, (1, 2)) == 2
    with pytest.raises(ValueError, match=r"mode must be one of 'min', 'max', but got 'mix'\. Did you mean"):
        one_of("mode", "mix", ("min", "max"))
    with pytest.raises(ValueError, match=r"size must be one of 1, 2, but got 3\.$"):
        one_of("size", 3, (1, 2))


def test_plural():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_warnings_are_user_warnings():
    for kind in (NoEffectWarning, NotIntendedUseWarning, VersionedDeprecationWarning):
        assert issubclass(kind, ComposerWarning)
    assert issubclass(ComposerWarning, UserWarning)


def test_versioned_deprecation():
    warning = VersionedDeprecationWarning("x is deprecated.", remove_version="2.0")
    assert str(warning) == "x is deprecated. It will be removed in version 2.0."
    assert str(VersionedDeprecationWarning("x is deprecated.")) == "x is deprecated."
    assert str(pickle.loads(pickle.dumps(warning))) == str(warning)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=1)
    assert seen[0].category is VersionedDeprecationWarning


@pytest.mark.parametrize(
    ("written", "meant", "is_one"),
    [
        ("foward", "forward", True),
        ("forwwrd", "forward", True),
        ("forwards", "forward", True),
        ("froward", "forward", True),
        ("forward", "forward", False),
        ("fowarrd", "forward", False),
        ("reward", "forward", False),
        ("", "a", True),
        ("", "ab", False),
    ],
)
def test_typos(written, meant, is_one):
    assert is_slip(written, meant) is is_one
    assert is_slip(meant, written) is is_one
