"""Surgery: layers are replaced wherever they occur, and the optimizers follow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DataParallel

from composer.nn import BlurMaxPool2d
from composer.surgery import count_module_instances, replace_module_classes, update_params_in_optimizer
from tests.accelerator import DEVICE, FakeAccelerator, FakeDevice


class Wrapper(nn.Module):
    """Holds what it replaces, with a parameter of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.ones(3))


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 1))


def to_linear(module: nn.Linear, module_index: int) -> nn.Module:
    return nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)


def test_every_descendant_is_replaced_and_counted():
    model = small_model()
    seen: list[tuple[nn.Module, int]] = []

    def policy(module, module_index):
        seen.append((module, module_index))
        return nn.GELU()

    old = [model[1], model[2][1]]
    replaced = replace_module_classes(model, {nn.ReLU: policy})
    assert list(replaced) == old
    assert [model[1], model[2][1]] == list(replaced.values())
    assert seen == [(old[0], 0), (old[1], 1)]
    assert count_module_instances(model, nn.ReLU) == 0
    assert count_module_instances(model, (nn.GELU, nn.Linear)) == 5
    assert count_module_instances(nn.ReLU(), nn.ReLU) == 1


def test_none_keeps_the_module_and_the_next_policy_is_asked():
    model = nn.Sequential(nn.ReLU(), nn.ReLU6())  # ReLU6 is a Hardtanh, not a ReLU
    kept = model[0]
    replaced = replace_module_classes(
        model, {nn.ReLU: lambda m, i: None, nn.Hardtanh: lambda m, i: None, nn.Module: lambda m, i: nn.Identity()}
    )
    assert len(replaced) == 2
    assert kept in replaced
    assert replace_module_classes(model, {nn.Linear: to_linear}) == {}


def test_indices_continue_across_calls():
    indices: dict[type[nn.Module], int] = {nn.Linear: 5}
    numbers = []
    for _ in range(2):
        replace_module_classes(small_model(), {nn.Linear: lambda m, i: numbers.append(i)}, indices=indices)
    assert numbers == [5, 6, 7, 8, 9, 10]


def test_shared_module_is_replaced_once_and_everywhere():
    shared = nn.ReLU()
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.Linear(1, 1)), "c": shared})
    replaced = replace_module_classes(model, {nn.ReLU: lambda m, i: nn.GELU()})
    assert len(replaced) == 1
    assert model["a"] is model["c"] is model["b"][0] is replaced[shared]


@pytest.mark.parametrize("recurse", [False, True])
def test_replacement_may_hold_the_original(recurse):
    model = small_model()
    replaced = replace_module_classes(model, {nn.Linear: lambda m, i: Wrapper(m)}, recurse_on_replacements=recurse)
    assert len(replaced) == 3
    assert all(new.inner is old for old, new in replaced.items())


def test_recursion_reaches_inside_replacements_only_when_asked():
    def wrap_relu(module, module_index):
        return nn.Sequential(nn.Tanh())

    policies = {nn.ReLU: wrap_relu, nn.Tanh: lambda m, i: nn.GELU()}
    model = small_model()
    replace_module_classes(model, policies)
    assert isinstance(model[1][0], nn.Tanh)
    model = small_model()
    replace_module_classes(model, policies, recurse_on_replacements=True)
    assert isinstance(model[1][0], nn.GELU)


def test_replacement_keeps_dtype_mode_and_shared_parameters():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))).double()
    inner = model[0]
    inner[1].eval()
    replaced = replace_module_classes(model.train(False), {nn.Sequential: lambda m, i: Wrapper(m)})
    new = replaced[inner]
    assert new.scale.dtype == torch.float64
    assert not new.training
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model[0][1].eval()  # a frozen norm must not be woken up
    replace_module_classes(model, {nn.Sequential: lambda m, i: Wrapper(m)})
    assert model[0].training
    assert not model[0].inner[1].training


def test_replacement_takes_the_device():
    model = nn.Sequential(nn.Linear(2, 2, device="meta"))
    replace_module_classes(model, {nn.Linear: to_linear})
    assert model[0].weight.device.type == "meta"


def test_replacement_of_a_layer_without_tensors_keeps_its_values_in_a_model_on_the_meta_device():
    model = nn.Sequential(nn.Conv2d(2, 2, 1, device="meta"), nn.MaxPool2d(2))
    replace_module_classes(model, {nn.MaxPool2d: lambda module, module_index: BlurMaxPool2d(2)})
    assert model[1].blur_filter.device.type == "cpu"


def test_wrapped_model_is_refused():
    with pytest.raises(TypeError, match="DataParallel"):
        replace_module_classes(DataParallel(small_model()), {nn.ReLU: lambda m, i: nn.GELU()})


def step(model, *optimizers):
    model(torch.ones(4, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def test_optimizers_keep_groups_order_and_state():
    model = small_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.AdamW([{"params": [*model[2].parameters()], "lr": 0.5}, {"params": [*model[3].parameters()]}])
    step(model, first, second)
    old = model[2][0]
    kept = {p: second.state[p] for p in model[3].parameters()}
    replaced = replace_module_classes(model[2], {nn.Linear: to_linear}, optimizers=[first, second])
    new = replaced[old]
    assert [id(p) for p in second.param_groups[0]["params"]] == [id(p) for p in new.parameters()]
    assert second.param_groups[0]["lr"] == 0.5
    assert all(p not in second.state for p in old.parameters())
    assert all(second.state[p] is kept[p] for p in kept)
    assert [id(p) for p in first.param_groups[0]["params"]] == [id(p) for p in model[0].parameters()]
    model.zero_grad()
    before = new.weight.detach().clone()
    step(model, first, second)
    assert not torch.equal(before, new.weight)


def test_parameters_kept_by_the_replacement_keep_their_state():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    state = {p: optimizer.state[p] for p in model.parameters()}
    old = model[0]
    wrapper = replace_module_classes(nn.Sequential(old), {nn.Linear: lambda m, i: Wrapper(m)}, optimizer)[old]
    params = optimizer.param_groups[0]["params"]
    assert all(optimizer.state[p] is state[p] for p in state)
    assert [id(p) for p in params[:3]] == [id(old.weight), id(old.bias), id(wrapper.scale)]
    assert len(params) == 7


def test_weights_and_biases_in_separate_groups():
    model = small_model()
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": weights, "weight_decay": 0.1}, {"params": biases}], lr=0.1)
    replace_module_classes(model, {nn.Linear: to_linear}, optimizer)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters() if p.ndim == 2}
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == {id(p) for p in model.parameters() if p.ndim == 1}


def test_ambiguous_group_is_an_error_and_changes_nothing():
    old, new = nn.Bilinear(2, 2, 2, bias=False), nn.Linear(2, 2, bias=False)
    old.extra = nn.Parameter(torch.zeros(1, 1, 1, 1))
    optimizer = torch.optim.SGD([{"params": [old.weight]}, {"params": [old.extra]}], lr=0.1)
    with pytest.raises(RuntimeError, match=r"\(2, 2\).*2 parameter groups"):
        update_params_in_optimizer(old.parameters(), new.parameters(), optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    assert optimizer.param_groups[0]["params"][0] is old.weight


def test_matrices_join_the_group_of_filters_not_biases():
    old = nn.Conv2d(2, 2, 1)
    new = nn.Sequential(old, nn.Linear(2, 1, bias=False), nn.Linear(1, 2))
    optimizer = torch.optim.SGD([{"params": [old.weight], "weight_decay": 0.1}, {"params": [old.bias]}], lr=0.1)
    update_params_in_optimizer(old.parameters(), new.parameters(), optimizer)
    decayed, plain = ([id(p) for p in group["params"]] for group in optimizer.param_groups)
    assert decayed == [id(old.weight), id(new[1].weight), id(new[2].weight)]
    assert plain == [id(old.bias), id(new[2].bias)]


def test_tied_weight_stays_in_the_optimizer():
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace_module_classes(model, {nn.Linear: to_linear}, optimizer)
    params = optimizer.param_groups[0]["params"]
    assert [id(p) for p in params] == [id(model["embedding"].weight), id(model["head"].weight)]


def test_parameters_of_no_optimizer_stay_out():
    model = small_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    replace_module_classes(model[2], {nn.Linear: to_linear}, optimizer)
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_replacing_a_layer_without_parameters():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replace_module_classes(model, {nn.ReLU: lambda m, i: nn.PReLU()}, optimizer)
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert len(optimizer.param_groups[0]["params"]) == 8
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=0.1)
    with pytest.raises(RuntimeError, match="PReLU"):
        replace_module_classes(small_model(), {nn.ReLU: lambda m, i: nn.PReLU()}, optimizer)


def test_names_of_parameters_follow():
    model = small_model()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    replace_module_classes(model, {nn.Linear: lambda m, i: Wrapper(m) if i == 0 else to_linear(m, i)}, optimizer)
    group = optimizer.param_groups[0]
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(group["param_names"]) == sorted(
        [
            "0.weight",
            "0.bias",
            "0.scale",
            "2.0.weight",
            "2.0.bias",
            "3.weight",
            "3.bias",
        ]
    )
    assert [name.split(".")[-1] for name in group["param_names"]] == [
        names[id(p)].split(".")[-1] for p in group["params"]
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(0, 3), st.integers(1, 3))
def test_update_keeps_the_others_in_order(removed, num_new, num_before):
    others = [nn.Parameter(torch.zeros(1)) for _ in range(num_before)]
    old = [nn.Parameter(torch.zeros(1)) for _ in removed]
    new = [p for p, gone in zip(old, removed, strict=True) if not gone] + [
        nn.Parameter(torch.zeros(1)) for _ in range(num_new)
    ]
    optimizer = torch.optim.SGD([*others, *old], lr=0.1)
    update_params_in_optimizer(old, new, optimizer)
    params = optimizer.param_groups[0]["params"]
    assert [id(p) for p in params[:num_before]] == [id(p) for p in others]
    assert {id(p) for p in params} == {id(p) for p in [*others, *new]}
    assert len(params) == len(others) + len(new)


@pytest.mark.parametrize("nested", [False, True])
def test_replacement_without_tensors_uses_the_device_of_its_neighbors(nested) -> None:
    """As a pooling that becomes a blurred one with its filter, in a model that is on its device already."""

    class WithFilter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("filter", torch.ones(3))

    with FakeAccelerator():
        layers = [nn.Linear(2, 2), nn.Sequential(nn.MaxPool2d(2)) if nested else nn.MaxPool2d(2)]
        model = FakeDevice().module_to_device(nn.Sequential(*layers))
        (made,) = replace_module_classes(model, {nn.MaxPool2d: lambda module, module_index: WithFilter()}).values()
        assert made.filter.device == DEVICE
        alone = nn.Sequential(nn.MaxPool2d(2))
        (made,) = replace_module_classes(alone, {nn.MaxPool2d: lambda module, module_index: WithFilter()}).values()
        assert made.filter.device == torch.device("cpu")
