"""The traits that methods declare are complete, and true if that can be tested."""

from __future__ import annotations

import inspect
import re
import warnings

import pytest
import torch

from composer.algorithms import Alibi, MixUp, ProgressiveResizing, StochasticDepth, apply_gradient_clipping
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.engine import Engine
from composer.core.state import State
from composer.core.traits import traits_of
from composer.verification.digests import rng_digest
from composer.verification.neutral import set_neutral
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import all_cases, public_classes, weights

METHODS = public_classes()
SECTIONS = ("When to use it", "When not to", "How to choose", "Cost")

every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_declares_how_it_works_with_multiple_ranks(name):
    method = METHODS[name]
    declared = [cls for cls in method.__mro__ if "__traits__" in vars(cls)]
    assert declared[0] is not Algorithm, "declare sharding and sharding_reason"
    assert isinstance(method.__traits__.sharding, Sharding)
    assert method.__traits__.sharding_reason.endswith(".")


@every_method
def test_conflicts_name_a_method_and_a_remedy(name):
    for other, reason in METHODS[name].__traits__.conflicts_with.items():
        assert other in METHODS, f"{name} conflicts with {other}, which is not a method"
        assert other != name
        # A reason, and a sentence that says what to do.
        assert re.fullmatch(r"[a-z].+[.] (Use|Set|Omit|Clip) .+[.]", reason), reason
        assert name not in METHODS[other].__traits__.conflicts_with, f"declared by both {name} and {other}"


@every_method
def test_slots_are_slots(name):
    assert METHODS[name].__traits__.slot is None or isinstance(METHODS[name].__traits__.slot, Slot)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_claims_are_those_that_it_may_have(case):
    method = case.make()
    assert method.__traits__.claims <= type(method).__traits__.may_claim
    assert set(method.__traits__.conflicts_with) <= set(type(method).__traits__.conflicts_with)


def test_arguments_narrow_what_is_declared():
    assert MixUp(interpolate_loss=True).__traits__.claims == MixUp.__traits__.may_claim
    assert not MixUp().__traits__.claims
    assert "LabelSmoothing" in MixUp(interpolate_loss=True).__traits__.conflicts_with
    assert "LabelSmoothing" not in MixUp().__traits__.conflicts_with
    assert Alibi(64).__traits__.conflicts_with
    assert not Alibi(64, 1.0).__traits__.conflicts_with
    assert "SAM" in StochasticDepth("Block").__traits__.conflicts_with
    assert not StochasticDepth("Block", "sample").__traits__.conflicts_with
    assert (
        StochasticDepth("Block", "sample").__traits__.sharding
        is ProgressiveResizing("crop").__traits__.sharding
        is Sharding.PER_RANK
    )


@every_method
def test_docstring_says_when_and_how(name):
    doc = inspect.cleandoc(METHODS[name].__doc__)  # as Python 3.13 has it
    positions = [doc.find(f"\n{section}:\n    ") for section in SECTIONS]
    assert min(positions) > 0, f"a section of {', '.join(SECTIONS)} is missing"
    assert positions == sorted(positions)


@pytest.fixture
def one_rank():
    """A process group of one rank, in which parameters can be sharded."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _train_sharded(case, algorithm):
    """Train a case with parameters sharded after INIT, as a strategy does; on one rank here."""
    from torch.distributed.fsdp import fully_shard

    model = case.model()
    optimizer = case.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = State(model=model, max_duration="4ba", optimizers=optimizer, precision=case.precision)
    engine = Engine(state, algorithms=[algorithm])
    engine.run_event("init")
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    fully_shard(state.model)
    parameters = dict(state.model.named_parameters())
    for group in state.optimizers[0].param_groups:
        group["params"][:] = [parameters[names[id(parameter)]] for parameter in group["params"]]
    for event in ("before_load", "after_load"):
        engine.run_event(event)
    return loop.fit(engine, case.batches())


def _outcome(model):
    return {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in weights(model).items()}


# The small models of the cases end in a view, which must not be modified in place.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_parameters_may_be_sharded_as_declared(case):
    torch.manual_seed(3)
    algorithm = case.make()
    if not algorithm.__traits__.sharding.supports_sharded_weights:
        with pytest.raises(NotImplementedError):
            _train_sharded(case, algorithm)
        return
    sharded = _outcome(_train_sharded(case, algorithm).state.model)
    torch.manual_seed(3)
    model = case.model()
    engine = loop.start(model, [case.make()], case.optimizer(model), precision=case.precision)
    unsharded = weights(loop.fit(engine, case.batches()).state.model)
    for name, value in unsharded.items():
        torch.testing.assert_close(sharded[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("clipping_type", ["norm", "value", "adaptive"])
def test_sharded_gradients_are_clipped_like_unsharded_ones(clipping_type):
    from torch.distributed.tensor import distribute_tensor

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    layers = [torch.nn.Linear(4, 3) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    shards = [torch.nn.Parameter(distribute_tensor(p.detach(), mesh)) for p in layers[1].parameters()]
    for unsharded, shard in zip(layers[0].parameters(), shards, strict=True):
        unsharded.grad = torch.randn_like(unsharded)
        shard.grad = distribute_tensor(unsharded.grad.clone(), mesh)
    apply_gradient_clipping(layers[0].parameters(), clipping_type, 0.1)
    apply_gradient_clipping(shards, clipping_type, 0.1)
    for unsharded, shard in zip(layers[0].parameters(), shards, strict=True):
        torch.testing.assert_close(shard.grad.full_tensor(), unsharded.grad)


# As in MosaicML Composer 0.32, where WeightStandardization is not among them: docs/migrating.md says why.
REQUIRED = {
    *("Alibi", "BlurPool", "Factorize", "GatedLinearUnits", "GhostBatchNorm", "GyroDropout", "LowPrecisionGroupNorm"),
    *("LowPrecisionLayerNorm", "NoOpModel", "SqueezeExcite", "StochasticDepth", "WeightStandardization"),
}


@every_method
def test_loading_requires_what_changes_the_layers(name):
    assert METHODS[name].required_on_load() is (name in REQUIRED)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_neutral_setting_equals_absent_bit_for_bit(case):
    """Also the random state, which a method that samples in vain would change for others."""
    method = case.make()
    declared = traits_of(method)
    assert (declared.neutral is None) == bool(declared.why_not_neutral), "declare one of them in __traits__"
    set_neutral([method], case.name)
    if declared.neutral is not None:
        assert outcome_of(case, [method]) == outcome_of(case, [])


def outcome_of(case, methods):
    torch.manual_seed(3)
    model = case.model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        engine = loop.start(model, methods, case.optimizer(model), precision=case.precision)
        loop.fit(engine, case.batches())
    return {name: value.tolist() for name, value in weights(model).items()}, rng_digest()
