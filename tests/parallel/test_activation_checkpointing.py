from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from composer.parallel import activation_checkpointing as module_of_recompute
from composer.parallel.activation_checkpointing import (
    _OffloadToHost,
    apply_activation_checkpointing,
    checkpointed_modules,
)
from tests.parallel.sharded import Block, Blocks
from tests.parallel.test_wrapping import Declaring, Net
from tests.streams import FakeCuda, OnCuda, RaceError, side_stream


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def _gradients(model: nn.Module, **arguments):
    """Gradients with dropout, and how often operations ran."""
    modules = [module for module in model.modules() if isinstance(module, Block)]
    if arguments:
        apply_activation_checkpointing(modules, **arguments)
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    dropout = nn.Dropout(0.5)
    modules[0].register_forward_hook(lambda module, inputs, output: dropout(output))
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
        Counting() as counting,
    ):
        loss = model((x, None)).square().sum()
        loss.backward()
    return [p.grad for p in model.parameters()], counting.counts, sum(saved), [module.calls for module in modules]


@pytest.mark.parametrize(
    "arguments",
    [{"checkpointing": True}, {"selective": True}, {"offload": True}, {"checkpointing": False, "offload": True}],
)
def test_gradients_are_the_same(arguments):
    model = Blocks()
    twin = copy.deepcopy(model)
    expected, _, plain, _ = _gradients(model)
    found, counts, saved, calls = _gradients(twin, **arguments)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    recomputes = arguments.get("checkpointing", True)
    assert calls == [2 if recomputes else 1] * 3
    assert saved < plain
    # Each block has two products of matrices, the ends of the model one each; selective ones are not repeated.
    forward = counts["addmm"]
    assert forward == (14 if recomputes and not arguments.get("selective") else 8)


def test_random_state_is_replayed():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    twin, x = copy.deepcopy(block), torch.randn(8, 4)
    apply_activation_checkpointing([twin])
    for module in (block, twin):
        torch.manual_seed(3)
        module(x).sum().backward()
    for one, other in zip(block.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


@dataclasses.dataclass
class Packed:
    x: torch.Tensor


class Keywords(nn.Module):
    """Takes its input in whichever way, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, packed=None, *, hidden=None, scale=1.0):
        return nn.functional.dropout(self.linear(packed.x if hidden is None else hidden), 0.5) * scale


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("call", [
    lambda module, x: module(hidden=x, scale=2.0),
    lambda module, x: module(Packed(x)),
    lambda module, x: module(packed=Packed(x)),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_device_is_found_for_any_call_signature(kind, call, selective, monkeypatch):
    # What torch takes for the device is that whose random numbers and autocast it brings back.
    found, infer = [], torch.utils.checkpoint._infer_device_type
    monkeypatch.setattr(
        torch.utils.checkpoint, "_infer_device_type", lambda *args: found.append(infer(*args)) or found[-1]
    )
    module, x = Keywords().to(kind), torch.ones(2, 4, device=kind)
    apply_activation_checkpointing([module], selective=selective)
    call(module, x).sum().backward()
    assert set(found) == {kind}
    assert module.linear.weight.grad is not None


# Those of what torch calls on the way too, into which it hands on keyword arguments.
_NAMES = sorted(
    {
        *("function", "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state"),
        *("forward", "first", "fn", "run_function", "dummy", "context", "operator", "func", "ctx"),
        *(
            name
            for each in vars(torch.utils.checkpoint).values()
            if inspect.isfunction(each) and each.__module__ == torch.utils.checkpoint.__name__
            for name, parameter in inspect.signature(each).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ),
    }
    - {"self"}
)


class Named(nn.Module):
    """Returns what it got by name beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x=None, /, **named):
        return torch.tanh(self.linear(named["hidden"] if x is None else x)), named


@pytest.mark.parametrize("arguments", [{}, {"selective": True}, {"offload": True}])
@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_arguments_of_a_block_keep_their_names(kind, arguments):
    module, x = Named().to(kind), torch.ones(2, 4, device=kind)
    apply_activation_checkpointing([module], **arguments)
    named = {name: object() for name in _NAMES}
    output, found = module(x, **named)
    assert found == named
    output.sum().backward()
    named["hidden"] = x  # on a device that is not known from the positional arguments
    output, found = module(**named)
    assert list(found) == list(named)
    output.sum().backward()
    assert module.linear.weight.grad is not None


def test_names_classes_and_hooks_are_preserved():
    model = Blocks()
    names, kinds = list(model.state_dict()), [type(module) for module in model.modules()]
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    apply_activation_checkpointing(list(model.blocks))
    assert list(model.state_dict()) == names
    assert [type(module) for module in model.modules()] == kinds
    model((torch.randn(2, 4, dtype=torch.float64), None)).sum().backward()
    assert calls == [1]  # not again in the backward pass


def test_nothing_is_saved_without_a_backward_pass():
    block = Block().double()
    apply_activation_checkpointing([block])
    with torch.no_grad():
        assert not block(torch.randn(2, 6, dtype=torch.float64)).requires_grad
    assert block.calls == 1


def test_copied_module_uses_its_own_weights():
    block = nn.Linear(2, 2)
    apply_activation_checkpointing([block])
    twin = copy.deepcopy(block)
    nn.init.zeros_(twin.weight)
    nn.init.zeros_(twin.bias)
    assert twin(torch.ones(1, 2)).abs().sum() == 0


# ------------------------------------------------------------------------------------------- which modules


def test_blocks_are_found_automatically():
    model = Net(5)
    assert checkpointed_modules(model) == list(model.blocks)
    assert checkpointed_modules(model, every=2) == [model.blocks[i] for i in (0, 2, 4)]


def test_modules_declare_blocks():
    model = Declaring()
    model.head._activation_checkpointing = True
    assert checkpointed_modules(model) == [model.head]
    model.activation_checkpointing_fn = lambda module: isinstance(module, nn.Embedding)
    assert checkpointed_modules(model) == [model.embedding, model.head]


def test_no_blocks_found():
    with pytest.raises(ValueError, match="Linear has no repeated blocks"):
        checkpointed_modules(nn.Linear(1, 1))


def test_weights_are_not_offloaded(monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 11), nn.Tanh())
    twin, x = copy.deepcopy(module), torch.randn(5, 3)
    apply_activation_checkpointing([twin], checkpointing=False, offload=True)
    taken, empty_like = [], torch.empty_like

    def noted(like, **options):
        taken.append(tuple(like.shape))
        return empty_like(like, **options)

    monkeypatch.setattr(torch, "empty_like", noted)
    loss = twin(x).square().sum()
    monkeypatch.undo()
    assert taken
    assert not {(7, 3), (3, 7), (11, 7), (7, 11)} & set(taken)  # transposed neither
    loss.backward()
    module(x).square().sum().backward()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


def test_any_forward_pass_is_offloaded():
    """One that somebody replaced, and one that was wrapped before."""
    module = nn.Linear(3, 3)
    module.forward = functools.partial(type(module).forward, module)
    apply_activation_checkpointing([module], checkpointing=False, offload=True)
    apply_activation_checkpointing([module], checkpointing=False, offload=True)
    module(torch.ones(2, 3)).sum().backward()
    assert module.weight.grad is not None


def test_offloading_with_partly_sharded_weights(two_ranks):
    assert all(two_ranks.run(offloading_with_shards))


def offloading_with_shards() -> bool:
    """A block with a child that is sharded by itself, as norms are in mixed precision."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    twin, x = copy.deepcopy(block), torch.randn(3, 4)
    fully_shard(block[1])
    fully_shard(block)
    apply_activation_checkpointing([block], checkpointing=False, offload=True)
    block(x).square().sum().backward()
    twin(x).square().sum().backward()
    return all(
        torch.allclose(one.grad.full_tensor(), other.grad, atol=1e-6)
        for one, other in zip(block.parameters(), twin.parameters(), strict=True)
    )


def test_offloading_has_no_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are queued behind what makes a tensor, and before what uses it or its memory again."""
    monkeypatch.setattr(module_of_recompute, "_PLAIN", (OnCuda,))
    with FakeCuda():
        hooks = _OffloadToHost(nn.Linear(1, 1))
        packed = []
        for number in range(3):
            activation = torch.full((2,), float(number)).to("cuda") + 1
            packed.append(hooks.pack_hook(activation))
            activation.add_(10)  # in place, as a later layer may, and its memory is used again
            del activation
        for number in reversed(range(3)):
            device, host = packed.pop()
            assert host.is_pinned()
            back = hooks.unpack_hook((device, host))
            del host  # before the copy has ended
            assert (back.is_cuda, (back * 2).tolist()) == (True, [2.0 * (number + 1)] * 2)


@pytest.mark.parametrize("where", ["pack", "unpack", "both"])
def test_offloading_without_stream_synchronization_is_a_race(where, monkeypatch) -> None:
    monkeypatch.setattr(module_of_recompute, "_PLAIN", (OnCuda,))

    def run() -> None:
        with FakeCuda():
            hooks = _OffloadToHost(nn.Linear(1, 1))
            activation = torch.ones(2).to("cuda") + 1
            with side_stream() if where != "unpack" else contextlib.nullcontext():
                packed = hooks.pack_hook(activation)
            activation.add_(10)
            del activation
            with side_stream() if where != "pack" else contextlib.nullcontext():
                back = hooks.unpack_hook(packed)
            (back * 2).tolist()

    with pytest.raises(RaceError):
        run()
