"""FSDP: training with sharded weights matches a single process."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from composer import Evaluator, State, Trainer, dist
from composer import algorithms as methods
from composer.callbacks import OptimizerMonitor
from composer.core import Algorithm
from composer.devices import get_device
from composer.loggers import InMemoryLogger
from composer.optim import DecoupledAdamW, DecoupledSGDW, MuonAdamW
from composer.parallel import FSDP2Config, FSDPConfig, ParallelismConfig, prepare_fsdp_module
from composer.parallel.fsdp import FSDPStrategy
from tests.older_torch import HAS_UNUSED_PARAMETERS
from tests.parallel.sharded import Blocks, adam, assert_same, data_of, full_tensor, full_weights, result, trained


def _muon(model: nn.Module) -> list[Any]:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]


OPTIMIZERS = {
    "adam": adam,
    "decoupled_adam": lambda model: DecoupledAdamW(model.parameters(), lr=0.01, weight_decay=1e-4),
    "decoupled_sgd": lambda model: DecoupledSGDW(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
    "muon": _muon,
    "muon_adamw": lambda model: MuonAdamW(model, lr=0.02),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True),
}

ALGORITHMS = {
    "clip_adaptive": lambda: methods.GradientClipping("adaptive", 0.01),
    "clip_norm": lambda: methods.GradientClipping("norm", 0.05),
    "clip_value": lambda: methods.GradientClipping("value", 0.01),
    "ema": lambda: methods.EMA(half_life="2ba", update_interval="1ba"),
    "post_hoc_ema": methods.PostHocEMA,
    "sam": lambda: methods.SAM(rho=0.1),
    "sam_adaptive": lambda: methods.SAM(rho=0.1, interval=2, adaptive=True, reuse=0.5),
    "spike_skip": lambda: methods.SpikeSkip(window=4, num_std=0.5),
    "swa": lambda: methods.SWA(swa_start="1ep", swa_end="2ep", update_interval="1ba"),
    "zclip": lambda: methods.ZClip(warmup_steps=2, z_threshold=0.1),
}

# Configuration, other arguments of the trainer.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "microbatches": ({}, {"device_train_microbatch_size": 1}),
    "single_sync": ({}, {"device_train_microbatch_size": 1, "ddp_sync_strategy": "single_auto_sync"}),
    "kept_gathered": ({"sharding_strategy": "SHARD_GRAD_OP"}, {}),
    "not_divided": ({"sharding_strategy": "NO_SHARD"}, {"device_train_microbatch_size": 1}),
    "one_unit": ({"auto_wrap": False}, {}),
    "fetched_ahead": ({"forward_prefetch": True, "forward_prefetch_limit": 2, "backward_prefetch_limit": 2}, {}),
    "recomputed": ({"activation_checkpointing": True}, {}),
    "recomputed_second": ({"activation_checkpointing": 2}, {}),
    "selective": ({"activation_checkpointing": "selective", "activation_cpu_offload": True}, {}),
    "offloaded": ({"activation_cpu_offload": True}, {}),
    "unused_found": ({}, {"find_unused_parameters": True}),
    "accumulated_precisely": ({"mixed_precision": {"reduce_dtype": "float64"}}, {}),
}


def _with_optimizer(name: str, config: dict[str, Any] | None):
    return result(config, optimizers=OPTIMIZERS[name], epochs=1)


def _with_algorithm(name: str, config: dict[str, Any] | None):
    # Averages of a second epoch, and losses that are outliers among those of a first one.
    return result(config, algorithms=ALGORITHMS[name](), epochs=2 if name in ("spike_skip", "swa") else 1)


def _with_config(name: str):
    config, arguments = CONFIGS[name]
    return result({"fsdp": config}, **arguments, epochs=1 if config else 2)


@pytest.fixture(scope="module")
def expected():
    return result()


@pytest.fixture(scope="module")
def expected_of_one_epoch():
    return result(epochs=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(two_ranks, expected, expected_of_one_epoch, name):
    """Those of the trainer alone for two epochs, of which the second shows what the first leaves; others for one."""
    if name == "unused_found" and not HAS_UNUSED_PARAMETERS:
        pytest.skip("this version of torch cannot have unused parameters where weights are divided")
    for found in two_ranks.run(_with_config, name):
        assert_same(found, expected_of_one_epoch if CONFIGS[name][0] else expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(two_ranks, name):
    alone = _with_optimizer(name, None)
    for found in two_ranks.run(_with_optimizer, name, {"fsdp": {}}):
        assert_same(found, alone)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods(two_ranks, name):
    alone = _with_algorithm(name, None)
    for found in two_ranks.run(_with_algorithm, name, {"fsdp": {}}):
        assert_same(found, alone)


def _hybrid(config: dict[str, Any]):
    found = result({"fsdp": config}, device_train_microbatch_size=1, epochs=1)
    strategy = FSDPStrategy(ParallelismConfig(fsdp=FSDPConfig(**config)))
    return found, (strategy.degrees.replicate, strategy.degrees.shard)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "degrees"),
    [
        ({"data_parallel_replicate_degree": 2}, (2, 2)),
        ({"data_parallel_replicate_degree": -1, "data_parallel_shard_degree": 4}, (1, 4)),
        ({"sharding_strategy": "HYBRID_SHARD"}, (1, 4)),  # all four are of one node
    ],
)
def test_replicated_shards(four_ranks, expected_of_one_epoch, config, degrees):
    for found, sizes in four_ranks.run(_hybrid, config):
        assert sizes == degrees
        assert_same(found, expected_of_one_epoch)


def test_single_process(expected):
    try:
        assert_same(result({"fsdp": {}}), expected)
    finally:
        torch.distributed.destroy_process_group()


def _in_bfloat16(config: dict[str, Any] | None, seen: bool = False):
    dtypes: list[torch.dtype] = []

    class Seeing(Blocks):
        def forward(self, batch):
            dtypes.append(self.first.weight.dtype)
            return super().forward(batch)

    trainer = trained(config, lambda: Seeing(torch.float32), dtype=torch.float32, precision="amp_bf16")
    return full_weights(trainer.state.model), set(dtypes), {p.dtype for p in trainer.state.model.parameters()}


def test_reduced_precision_dtypes(two_ranks):
    alone, _, _ = _in_bfloat16(None)
    for found, seen, kept in two_ranks.run(_in_bfloat16, {"fsdp": {}}):
        assert seen == {torch.bfloat16}
        assert kept == {torch.float32}
        assert_same(found, alone, atol=0.01)
    for _, seen, _ in two_ranks.run(_in_bfloat16, {"fsdp": {"mixed_precision": "FULL"}}):
        assert seen == {torch.float32}


# ------------------------------------------------------------------------------------------- what a process holds


def _shapes():
    trainer = trained({"fsdp": {}}, optimizers=lambda model: torch.optim.Adam(model.parameters()))
    model, (optimizer,) = trainer.state.model, trainer.state.optimizers
    parts = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters())
    states = [state["exp_avg"].to_local() for p, state in optimizer.state.items() if hasattr(p, "to_local")]
    units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    names = [name for name, _ in model.named_parameters()]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    same = held == {id(p) for p in model.parameters()}
    return parts, sum(state.numel() for state in states), units, names, same, list(model.state_dict()) == names


def test_each_rank_holds_a_shard(two_ranks):
    model = Blocks()
    total = sum(parameter.numel() for parameter in model.parameters())
    (one, one_state, units, names, same, saved), (other, _, _, _, _, _) = two_ranks.run(_shapes)
    assert one + other == total + 3  # the gains, which have no parts
    assert one_state == one - 3
    assert units == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert names == [name for name, _ in model.named_parameters()]
    assert same
    assert saved


class _Noting(Algorithm):
    """Keeps whether weights are gathered at some events."""

    def __init__(self) -> None:
        self.found: dict[str, bool] = {}

    def _note(self, name: str, state: State) -> None:
        self.found[name] = not any(type(p) is nn.Parameter and p.ndim > 0 for p in state.model.parameters())

    def batch_end(self, state, logger):
        self._note("batch_end", state)

    def eval_batch_end(self, state, logger):
        self._note("eval_batch_end", state)


class OddEval(Blocks):
    """Uses weights of its own outside of its forward pass."""

    def eval_forward(self, batch, outputs=None):
        outputs = self.forward(batch) if outputs is None else outputs
        return outputs * self.last.weight.sum() / self.last.weight.sum()

    def loss(self, outputs, batch):
        return super().loss(outputs, batch) + 0.01 * self.last.weight.square().sum()

    def get_metrics(self, is_train):
        from torchmetrics import MeanSquaredError

        return {"mse": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs, batch[1])


def _evaluated(config: dict[str, Any] | None):
    noting, evaluator = _Noting(), Evaluator(label="eval", dataloader=data_of(*_share()), eval_interval="1ba")
    trainer = trained(config, OddEval, algorithms=[noting, methods.EMA(half_life="1ba", update_interval="1ba")],
                      eval_dataloader=evaluator)  # fmt: skip
    value = trainer.state.eval_metrics["eval"]["mse"].compute()
    outputs = trainer.predict(data_of(*_share())[:1])
    return full_weights(trainer.state.model), noting.found, float(value), [output.shape for output in outputs]


def _share() -> tuple[int, int]:
    return (dist.get_global_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def test_evaluation_leaves_nothing_unsharded(two_ranks):
    """An evaluation has averages in the weights, which a weight that stayed gathered would bring into training."""
    alone, _, value, _ = _evaluated(None)
    for found, divided, metric, shapes in two_ranks.run(_evaluated, {"fsdp": {}}):
        assert_same(found, alone)
        assert divided == {"batch_end": True, "eval_batch_end": True}
        assert metric == pytest.approx(value, abs=1e-6)
        assert [tuple(shape) for shape in shapes] == [(4, 1)] * 2  # of both


def _monitored(config: dict[str, Any] | None):
    log = InMemoryLogger()
    trainer = trained(config, callbacks=OptimizerMonitor(batch_log_interval=1), loggers=log,
                      algorithms=methods.GradientClipping("norm", 0.05))  # fmt: skip
    del trainer
    return {name: [float(v) for _, v in values] for name, values in log.data.items() if name.startswith("l2_norm/")}


def test_monitors_measure_full_tensors(two_ranks):
    alone = _monitored(None)
    assert "l2_norm/grad/global" in alone
    for found in two_ranks.run(_monitored, {"fsdp": {}}):
        assert found.keys() == alone.keys()
        for name, values in alone.items():
            assert found[name] == pytest.approx(values, rel=1e-6, abs=1e-12), name


# ------------------------------------------------------------------------------------------- beginnings


def _begun(rank_of_seed: bool):
    """Weights that differ between processes, an optimizer that has stepped, frozen and tied weights, a buffer."""
    torch.manual_seed(dist.get_global_rank() if rank_of_seed else 0)
    model = Blocks()
    model.register_buffer("scale", torch.rand(2))
    model.blocks[1].up.weight.requires_grad = False
    model.second = model.last
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    prepare_fsdp_module(model, optimizer, {}, device=get_device("cpu"))
    after = full_weights(model)
    kept = [full_tensor(state["exp_avg"]) for state in optimizer.state.values()]
    order = [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    return before, after, moments, kept, order, model.scale, model.second.weight is model.last.weight


def test_all_ranks_start_with_weights_of_rank_zero(two_ranks):
    answers = two_ranks.run(_begun, True)
    for _, after, moments, kept, order, scale, tied in answers:
        assert_same(after, answers[0][0], atol=0)
        torch.testing.assert_close(kept, moments, rtol=0, atol=0)
        torch.testing.assert_close(scale, answers[0][5], rtol=0, atol=0)
        assert order
        assert tied


def _by_hand():
    model = Blocks()
    optimizer = adam(model)[0]
    prepare_fsdp_module(model, optimizer, FSDPConfig(verbose=True), device=get_device("cpu"))
    before = {id(parameter) for parameter in model.parameters()}
    trainer = Trainer(model=model, optimizers=torch.optim.SGD(model.parameters()), progress_bar=False, device="cpu",
                      parallelism_config=ParallelismConfig(fsdp2=FSDP2Config(state_dict_type="full")))  # fmt: skip
    return before == {id(parameter) for parameter in trainer.state.model.parameters()}


def test_already_sharded_modules_are_unchanged(two_ranks):
    assert two_ranks.run(_by_hand) == [True, True]


def _refusals():
    found: list[str] = []

    class Graphs(Algorithm):
        backwards_create_graph = True

    for arguments in (
        {"algorithms": Graphs()},
        {"optimizers": lambda model: torch.optim.LBFGS(model.parameters())},
        {"config": {"fsdp": {"cpu_offload": True}}},
        {"config": {"fsdp": {"data_parallel_shard_degree": 3}}},
        {"ddp_sync_strategy": "forced_sync"},
    ):
        config = arguments.pop("config", {"fsdp": {}})
        with pytest.raises(ValueError, match=r"\w") as error:
            trained(config, **arguments)
        found.append(str(error.value))
    return found


def test_unsupported_settings_are_rejected_with_the_reason(two_ranks):
    for found in two_ranks.run(_refusals):
        for text, part in zip(
            found,
            ("Graphs needs second-order", "LBFGS needs all", "requires an accelerator", "must be 2", "forced_sync"),
            strict=True,
        ):  # fmt: skip
            assert part in text


def _compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about weights that are views of what was gathered
        return result({"fsdp": {}}, compile_config={"backend": "eager"})


def test_compiled(two_ranks, expected):
    for found in two_ranks.run(_compiled):
        assert_same(found, expected)


def _found_lr(config: dict[str, Any] | None):
    """Training before and after a search for a learning rate, which leaves no trace."""
    trainer = trained(config, algorithms=methods.GradientClipping("norm", 0.05))
    before = full_weights(trainer.state.model)
    losses = trainer.find_lr(1e-4, 0.1, 4).losses
    return before, full_weights(trainer.state.model), losses


def test_find_lr_leaves_no_trace(two_ranks):
    _, _, alone = _found_lr(None)
    for before, after, losses in two_ranks.run(_found_lr, {"fsdp": {}}):
        assert_same(after, before, atol=0)
        assert losses == pytest.approx(alone, abs=1e-6)


def _verbose():
    records: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    log, handler = logging.getLogger("composer.parallel.fsdp"), Keeping()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        prepare_fsdp_module(Blocks(), None, FSDPConfig(verbose=True), device=get_device("cpu"))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return records


def test_verbose_names_the_units(two_ranks):
    for records in two_ranks.run(_verbose):
        assert len(records) == 3
        assert "blocks.2" in records[0]
