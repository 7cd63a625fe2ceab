"""The planted faults are real, the table is consistent, and trainers without a fault pass the same checks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer import DataSpec
from composer.trials import Target
from tests.verification import faults
from tests.verification.evidence import DIFFERS, differ_on_ranks, on_rank, run
from tests.verification.fault import CAUSES, CHECKS, TABLE, fault
from tests.verification.faults import FAULTS
from tests.verification.parts import Classifier, Rows, Tagger, Texts, build, dropout_model, loader, network

_EXPECTED = {"batch_statistics", "random_in_model"}  # reported, and no fault


@pytest.mark.parametrize("name", [name for name, each in FAULTS.items() if each.in_process and each.check != "ranks"])
def test_fault_is_real(name):
    assert DIFFERS[FAULTS[name].check](FAULTS[name].make)


@pytest.mark.parametrize("check", DIFFERS)
def test_sound_trainers_pass(check):
    sound = [build, lambda: build(Tagger, loader(Texts())), lambda: build(data=loader(Rows(), num_workers=2))]
    if check == "data":
        del sound[1]  # the rows are others
    if check not in ("microbatches", "precision"):
        sound.append(lambda: build(dropout_model, algorithms=[], loggers=[]))
        sound.append(lambda: build(lambda: Classifier(network(nn.BatchNorm1d(12))), eval_dataloader=loader()))
    assert not any(DIFFERS[check](make) for make in sound)


@pytest.mark.parametrize("name", [name for name, each in FAULTS.items() if each.check == "ranks"])
def test_fault_is_real_on_two_ranks(name, two_ranks):
    found = two_ranks.run(on_rank, FAULTS[name].make)
    assert differ_on_ranks(FAULTS[name].cause, found)


@pytest.mark.parametrize("cause", sorted({each.cause for each in FAULTS.values() if each.check == "ranks"}))
def test_sound_trainer_passes_on_two_ranks(cause, two_ranks):
    assert not differ_on_ranks(cause, two_ranks.run(on_rank, _with_dropout))


def _with_dropout():
    return build(dropout_model)


def test_process_id_is_a_seed(monkeypatch):
    make = FAULTS["seeded_by_process_id"].make
    assert not DIFFERS["repeat"](make)
    first = run(make)
    monkeypatch.setattr("os.getpid", lambda: 4)
    assert not first.equals(run(make))


def test_table_is_consistent():
    for each in FAULTS.values():
        assert set(each.causes) <= CAUSES, each.name
        assert set(each.checks) <= CHECKS, each.name
        assert "\n" not in each.description, each.name
        assert each.description.endswith("."), each.name
    assert {each.cause for each in FAULTS.values()} == CAUSES - _EXPECTED
    assert {each.check for each in FAULTS.values()} == CHECKS
    assert len(FAULTS) >= 40


def test_functions_are_found_by_path():
    for name, each in FAULTS.items():
        assert getattr(faults, name) is each.make
        target = Target.from_function(each.make)
        assert target.kind == "function"
        assert target.name == f"{each.make.__module__}:{name}"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no fault 'summed'"):
        _ = faults.summed


def test_second_fault_of_a_name_is_an_error():
    with pytest.raises(ValueError, match="two faults named 'summed_loss'"):
        fault("loss_scale", "microbatches")(TABLE["summed_loss"].make)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_small(name):
    trainer = FAULTS[name].make()
    assert sum(parameter.numel() for parameter in trainer.state.model.parameters()) <= 10_000
    spec = trainer.state.train_phase.loader
    assert isinstance(spec, DataSpec)
    assert spec.num_samples is None or spec.num_samples <= 64
    assert not torch.distributed.is_initialized()
