"""Data parallelism: training with multiple ranks matches one rank with the full batches."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from composer import Callback, ComposerModel, Event, Logger, State, dist
from composer.algorithms import SAM, GradientClipping
from composer.parallel import DDPStrategy, ddp, ddp_sync_context, prepare_ddp_module
from composer.parallel.ddp import DDPSyncStrategy
from tests.common import FEATURES, Regression, TwoLayers, regression_data, trainer_of
from tests.parallel.matrix import Trained, trained
from tests.ranks import Ranks

BATCHES = functools.partial(regression_data, 4, 7, dtype=torch.float64)


class Branches(ComposerModel):
    """Has a layer for batches that begin with a positive number, and one for the others; uses one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 5)
        self.positive, self.negative = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, batch: Any) -> Tensor:
        hidden = torch.tanh(self.body(batch[0]))
        # Each sample by itself, so that shards of a batch compute what the full batch does.
        wanted = batch[0][:, :1] > 0
        if wanted.all():
            return self.positive(hidden)
        if not wanted.any():
            return self.negative(hidden)
        return torch.where(wanted, self.positive(hidden), self.negative(hidden))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])


class Precise(TwoLayers):
    """In double precision, in which sums in another order are hardly others."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def lbfgs(model: nn.Module) -> Any:
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)


def several(model: nn.Module) -> Any:
    first, second = model.children()
    return [torch.optim.AdamW(first.parameters(), lr=0.01), torch.optim.SGD(second.parameters(), lr=0.1)]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "microbatches": {"device_train_microbatch_size": 2},
    "several": {"optimizers": several},
    "lbfgs": {"optimizers": lbfgs},
    "lbfgs by microbatches": {"optimizers": lbfgs, "device_train_microbatch_size": 1},
    "sam by microbatches": {"algorithms": lambda: SAM(rho=0.1), "device_train_microbatch_size": 2},
    "clipping by microbatches": {
        "algorithms": lambda: GradientClipping("norm", 0.05),
        "device_train_microbatch_size": 3,
        "ddp_sync_strategy": "multi_auto_sync",
    },
    "compiled": {"compile_config": {"backend": "eager"}, "device_train_microbatch_size": 3},
}


def train(setting: str, model: type[ComposerModel] = Precise, batches: Any = BATCHES, **more: Any) -> Trained:
    """Train by a setting; what ranks run, and the test's own process."""
    torch.manual_seed(5)
    arguments = {**SETTINGS[setting], **more}
    network = model()
    arguments["optimizers"] = arguments.get("optimizers", sgd)(network)
    if "algorithms" in arguments:
        arguments["algorithms"] = arguments["algorithms"]()
    return trained(network, batches(), **arguments)


@pytest.mark.parametrize("setting", SETTINGS)
def test_matches_single_process_training(setting: str, two_ranks: Ranks) -> None:
    first, second = two_ranks.run(train, setting)
    first.check_exactly(second)
    train(setting).check(first, 1e-9)


class Unfreeze(Callback):
    """Trains the frozen weights too, from the third batch on."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if event is self.event:
            state.model.requires_grad_(state.timestamp.batch >= 2)
            next(state.model.children()).requires_grad_(True)


def train_unfreezing(setting: str, event: Event = Event.BATCH_START) -> Trained:
    return train(setting, PartlyFrozen, callbacks=[Unfreeze(event)])


class PartlyFrozen(Precise):
    def __init__(self) -> None:
        super().__init__()
        for layer in list(self.children())[1:]:
            layer.requires_grad_(False)


@pytest.mark.parametrize("setting", ["plain", "microbatches", "lbfgs"])
def test_weights_that_are_unfrozen_in_training_are_averaged(setting: str, two_ranks: Ranks) -> None:
    first, second = two_ranks.run(train_unfreezing, setting)
    first.check_exactly(second)
    train_unfreezing(setting).check(first, 1e-9)


def test_weights_that_are_unfrozen_within_a_step_are_averaged(two_ranks: Ranks) -> None:
    """After the wrapper was made; it takes them in the next step."""
    first, second = two_ranks.run(train_unfreezing, "plain", Event.BEFORE_FORWARD)
    first.check_exactly(second)
    train_unfreezing("plain", Event.BEFORE_FORWARD).check(first, 1e-9)


class Toggle(Callback):
    """Freezes the first layer in every other step, also the last of four."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if event is self.event:
            next(state.model.children()).requires_grad_(state.timestamp.batch.value % 2 == 0)


def train_toggling(setting: str, event: Event, sync: str | None = None) -> Trained:
    return train(setting, callbacks=[Toggle(event)], ddp_sync_strategy=sync)


@pytest.mark.parametrize("event", [Event.BATCH_START, Event.BEFORE_FORWARD])
@pytest.mark.parametrize(
    ("setting", "sync"),
    [("plain", None), ("microbatches", None), ("microbatches", "multi_auto_sync")],
)
def test_weights_that_are_frozen_in_training(setting: str, sync: str | None, event: Event, two_ranks: Ranks) -> None:
    """The wrapper would wait for their gradients, and average none."""
    first, second = two_ranks.run(train_toggling, setting, event, sync)
    first.check_exactly(second)
    train_toggling(setting, event).check(first, 1e-9)


class ReplaceLayer(Callback):
    """Replaces the first layer in the third batch, and adds the weights of the new one to the optimizer."""

    def batch_start(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == 2:
            name, layer = next((name, one) for name, one in state.model.named_modules() if isinstance(one, nn.Linear))
            made = nn.Linear(layer.in_features, layer.out_features).double()
            nn.init.constant_(made.weight, 0.1 + dist.get_global_rank())  # the value of rank 0 counts
            nn.init.zeros_(made.bias)
            state.model.set_submodule(name, made)
            state.optimizers[0].add_param_group({"params": list(made.parameters())})


def train_replacing(**options: Any) -> Trained:
    return train("plain", callbacks=[ReplaceLayer()], **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"find_unused_parameters": True}, {"ddp_sync_strategy": "forced_sync"}, {"parallelism_config": {"fsdp": {}}}],
    ids=str,
)
def test_weights_of_layers_that_are_added_in_training_are_averaged(options: dict[str, Any], two_ranks: Ranks) -> None:
    first, second = two_ranks.run(functools.partial(train_replacing, **options))
    first.check_exactly(second)
    train_replacing().check(first, 1e-9)


def test_amp_bf16(two_ranks: Ranks) -> None:
    arguments = ("microbatches", TwoLayers, functools.partial(regression_data, 4, 8))
    first, second = two_ranks.run(train_in_bf16, *arguments)
    first.check_exactly(second)
    train_in_bf16(*arguments).check(first, 1e-2)


def train_in_bf16(setting: str, model: type[ComposerModel], batches: Any) -> Trained:
    return train(setting, model, batches, precision="amp_bf16")


def by_each_way(unused: bool) -> list[Trained]:
    """Train in every way to average gradients, by microbatches of which ranks have different numbers."""
    model = Branches if unused else TwoLayers
    batches = functools.partial(regression_data, 4, 7)
    more: dict[str, Any] = {"find_unused_parameters": True} if unused else {}
    return [train("microbatches", model, batches, ddp_sync_strategy=sync, **more) for sync in DDPSyncStrategy]


@pytest.mark.parametrize("unused", [False, True], ids=["all used", "some unused"])
def test_all_averaging_methods_are_equal(unused: bool, two_ranks: Ranks) -> None:
    first, second = two_ranks.run(by_each_way, unused)
    for one, other in zip(first, second, strict=True):
        one.check_exactly(other)
    expected = train("microbatches", Branches if unused else TwoLayers, functools.partial(regression_data, 4, 7))
    for one in first:
        expected.check(one)


class HalfUsed(TwoLayers):
    """Has a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


def unused_but_not_expected() -> list[str]:
    with pytest.raises(RuntimeError, match="Expected to have finished reduction") as caught:
        train("plain", HalfUsed, functools.partial(regression_data, 4, 7))
    return caught.value.__notes__


def test_the_error_for_unused_parameters_names_the_argument(two_ranks: Ranks) -> None:
    for notes in two_ranks.run(unused_but_not_expected):
        assert any("Trainer(find_unused_parameters=True)" in note for note in notes)


def begun_apart() -> tuple[list[float], list[float]]:
    """Make a model with other weights on each rank; return them before and after a trainer has been made."""
    torch.manual_seed(torch.distributed.get_rank())
    model = Regression()
    before = model.linear.weight.flatten().tolist()
    trainer_of(model).close()
    return before, model.linear.weight.flatten().tolist()


def test_weights_of_rank_zero_are_broadcast(two_ranks: Ranks) -> None:
    (before, after), (before_too, after_too) = two_ranks.run(begun_apart)
    assert before != before_too
    assert before == after == after_too


def unused_by_default() -> tuple[str | None, bool]:
    """What is chosen where an algorithm says that parameters may be unused."""
    strategy = DDPStrategy()
    algorithm = GradientClipping("norm", 1.0)
    algorithm.find_unused_parameters = True
    strategy.prepare(State(model=TwoLayers(), algorithms=algorithm))
    assert strategy.module is not None
    return strategy.sync, strategy.has_collectives_per_microbatch


def without_parameters() -> tuple[bool, list[float]]:
    """Train nothing: the model is left as it is."""
    model = Regression()
    model.requires_grad_(False)
    same = prepare_ddp_module(model, find_unused_parameters=False) is model
    return same, model.linear.weight.flatten().tolist()


def in_a_custom_loop(sync: str) -> list[float]:
    """Two microbatches of each process, by hand."""
    torch.manual_seed(0)
    module = prepare_ddp_module(Regression(), find_unused_parameters=False)
    state = State(model=module)
    batches = regression_data(2, 2, seed=torch.distributed.get_rank())
    for number, (x, y) in enumerate(batches):
        with ddp_sync_context(state, number == 1, sync):
            nn.functional.mse_loss(module((x, y)), y).backward()
    return [float(value) for p in module.parameters() for value in p.grad.flatten()]


def failing_in_the_context() -> bool:
    """An error in the last microbatch: no rank waits for others when it exits."""
    state = State(model=prepare_ddp_module(Regression(), find_unused_parameters=False))
    with pytest.raises(ZeroDivisionError), ddp_sync_context(state, True, "forced_sync"):
        raise ZeroDivisionError
    return True


def test_in_custom_loops(two_ranks: Ranks) -> None:
    assert two_ranks.run(unused_by_default) == [(DDPSyncStrategy.MULTI_AUTO_SYNC, True)] * 2
    assert two_ranks.run(failing_in_the_context) == [True, True]
    frozen = two_ranks.run(without_parameters)
    assert [same for same, _ in frozen] == [True, True]
    torch.manual_seed(0)
    model = Regression()
    for rank in range(2):
        for x, y in regression_data(2, 2, seed=rank):
            (nn.functional.mse_loss(model((x, y)), y) / 2).backward()
    expected = [float(value) for p in model.parameters() for value in p.grad.flatten()]
    for sync in DDPSyncStrategy:
        for found in two_ranks.run(in_a_custom_loop, str(sync)):
            assert found == pytest.approx(expected, rel=1e-5)


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match=r"initialize_dist\(\)"):
        prepare_ddp_module(Regression(), find_unused_parameters=False)
    with pytest.raises(ValueError, match=r"sync_strategy must be one of .*Did you mean 'multi_auto_sync'\?"):
        ddp_sync_context(State(model=Regression()), True, "multi_autosync")


def averages_of_many(bucket: int) -> tuple[list[Tensor], int]:
    """Average gradients of many types; return them and the number of calls that it took."""
    ddp._BUCKET_BYTES = bucket
    rank, calls = dist.get_global_rank(), []
    all_reduce = torch_dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        calls.append(tensor.dtype)
        return all_reduce(tensor, *arguments, **options)

    shapes = [(3,), (2, 2), (), (4, 3, 2, 2), (5, 1), (40,), (1,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters += [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)), torch.nn.Parameter(torch.zeros(2))]
    for place, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, place + 10.0 * rank)
    parameters[3].grad = parameters[3].grad.contiguous(memory_format=torch.channels_last)
    parameters[4].grad = None if rank else parameters[4].grad
    parameters[6].grad = None
    torch_dist.all_reduce = counted
    try:
        ddp.average_gradients(parameters)
    finally:
        torch_dist.all_reduce = all_reduce
    assert parameters[6].grad is None
    assert parameters[3].grad.is_contiguous(memory_format=torch.channels_last)
    return [parameter.grad for parameter in parameters if parameter.grad is not None], len(calls)


@pytest.mark.parametrize(("bucket", "calls"), [(0, 9), (64, 7), (2**20, 4)])
def test_small_gradients_are_averaged_together(bucket: int, calls: int, two_ranks: Ranks) -> None:
    for gradients, made in two_ranks.run(averages_of_many, bucket):
        means = [float(gradient.mean()) for gradient in gradients]
        assert means == [5.0, 6.0, 7.0, 8.0, 2.0, 10.0, 12.0, 13.0]
        assert all(gradient.unique().numel() == 1 for gradient in gradients)
        assert made == calls  # one of which is for which gradients there are


def sparse_and_dense() -> list[Tensor]:
    """Gradients of an embedding with sparse ones, between dense ones."""
    rank = dist.get_global_rank()
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 2, sparse=True), nn.Linear(2, 2))
    for parameter in model[0].parameters():
        parameter.grad = torch.full_like(parameter, float(rank))
    model[1](torch.tensor([rank])).sum().backward()
    for parameter in model[2].parameters():
        parameter.grad = torch.full_like(parameter, 2.0 * rank)
    ddp.average_gradients(list(model.parameters()))
    return [parameter.grad.to_dense() for parameter in model.parameters()]


def test_sparse_gradients_are_reduced_separately(two_ranks: Ranks) -> None:
    for first, _, rows, *_, last in two_ranks.run(sparse_and_dense):
        assert (first == 0.5).all() and (last == 1.0).all()
        assert rows.sum(1).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
