"""The space of variants: a row for each algorithm, and what applies to which program."""

from __future__ import annotations

import dataclasses

import pytest

from composer import algorithms
from composer.exploration.method_rows import METHODS
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.space import methods, space_of
from composer.trials.assignments import Assignment, apply
from tests.algorithms.cases import public_classes

IMAGES = ProgramFacts(
    inputs="images",
    labels="classes",
    low=-0.4,
    high=2.8,
    learning_rates=(0.1,),
    batch_size=64,
    steps=500,
    has_convolutions=True,
    has_bf16=True,
)
TOKENS = ProgramFacts(inputs="tokens", has_keys=True, sequence_length=128, learning_rates=(1e-3,), block="Layer")


def test_every_algorithm_of_the_library_has_a_row() -> None:
    """Add a row to METHODS of composer/exploration/method_rows.py for a new algorithm."""
    assert list(METHODS) == sorted(METHODS, key=str.lower)
    assert set(METHODS) == set(public_classes())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("facts", [IMAGES, TOKENS, ProgramFacts()], ids=["images", "tokens", "nothing"])
def test_each_row_parses_and_constructs_its_algorithm(name: str, facts: ProgramFacts) -> None:
    found = list(methods(name, METHODS[name], facts))
    assert len({one.name for one in found}) == len(METHODS[name].calls)
    for variant in found:
        (change,) = variant.changes
        changed = apply([Assignment.parse(change)], {"algorithms": None})["algorithms"]
        assert [type(one) for one in changed] == [getattr(algorithms, name)]
        assert variant.group == (name if len(found) > 1 else "")


def test_layouts_and_precisions_only_change_the_speed_of_steps() -> None:
    for facts, own in ((IMAGES, {"ChannelsLast", "amp_bf16"}), (TOKENS, set[str]())):
        found = {one.name for one in space_of(facts).variants if one.speed_only}
        assert found == own | {"LowPrecisionGroupNorm", "LowPrecisionLayerNorm"}


def test_all_variants_have_different_names() -> None:
    names = [one.name for one in space_of(IMAGES).variants]
    assert len(set(names)) == len(names)


def test_what_a_program_lacks_is_the_reason() -> None:
    images, tokens = space_of(IMAGES), space_of(TOKENS)
    assert {"Alibi", "NEFTune", "SeqLengthWarmup"} <= set(images.refused)
    assert {"BlurPool", "CutMix", "RandAugment"} <= set(tokens.refused)
    assert tokens.refused["MixUp"].startswith("the batch is a mapping")
    assert {one.name for one in images.variants} >= {"BlurPool", "CutMix", "batch size x2", "lr x4", "amp_bf16"}
    assert {one.group for one in tokens.variants} >= {"SeqLengthWarmup", "NEFTune", "lr"}


def test_settings_are_multiples_of_what_the_program_has() -> None:
    changes = {one.name: one.changes for one in space_of(IMAGES).variants}
    assert changes["lr x0.5"] == ("optimizers.lr=0.05",)
    assert changes["batch size x2"] == ("train_dataloader.batch_size=128",)
    assert changes["batch size x0.5"] == ("train_dataloader.batch_size=32",)
    assert changes["RandAugment(on_device=True, value_range=(-0.4, 2.8))"]


@pytest.mark.parametrize(
    ("changed", "name", "reason"),
    [
        ({"algorithms": ("BlurPool",)}, "BlurPool", "uses it already"),
        ({"algorithms": ("EMA",)}, "SWA", "composes badly with EMA"),
        ({"algorithms": ("MixUp",)}, "CutMix", "composes badly with MixUp"),
        ({"fixed_schedule": "OneCycleLR"}, "learning rate", "OneCycleLR was created with"),
        ({"learning_rates": (0.1, 0.2)}, "learning rate", "different learning rates"),
        ({"batch_size": 0}, "batch size", "cannot be changed from outside"),
        ({"has_bf16": False}, "precision", "no fast bfloat16"),
        ({"precision": "amp_bf16"}, "precision", "uses amp_bf16"),
        ({"is_compiled": True}, "compile", "compiles its model"),
        ({"labels": "other"}, "LabelSmoothing", "the labels are not classes"),
    ],
)
def test_reasons(changed: dict[str, object], name: str, reason: str) -> None:
    assert reason in space_of(dataclasses.replace(IMAGES, **changed)).refused[name]
    assert name not in space_of(IMAGES).refused
