"""Training with the DeepSpeed engine, compared with a single process without it."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer, dist
from composer.algorithms import EMA, SAM, GradientClipping
from composer.callbacks import OptimizerMonitor
from composer.core import Algorithm
from composer.optim import LinearScheduler
from composer.warnings import ComposerWarning
from tests.common import At, TwoLayers, regression_data, trainer_of, weights_of
from tests.ranks import Ranks, given

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra 'deepspeed'")

Run = tuple[torch.Tensor, torch.Tensor]
"""Losses and weights."""

STAGES = (0, 1, 2, 3)
# Its buffer sizes and its threshold for unsharded weights are for large models.
SMALL = {
    "reduce_bucket_size": 100,
    "allgather_bucket_size": 100,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}


@pytest.fixture(scope="module")
def one_rank() -> Iterator[Ranks]:
    """One process with a group of its own."""
    yield from given(1)


def config_of(stage: int, **sections: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **SMALL}, **sections}


def local_shard(batches: list[Any], sizes: tuple[int, ...] | None = None) -> list[Any]:
    """Return this rank's shard of each batch, of equal or of the given sizes."""
    size, rank = dist.get_world_size(), dist.get_global_rank()
    return [tuple(part.split(sizes or len(part) // size)[rank] for part in batch) for batch in batches]


def make(
    batches: list[Any], config: dict[str, Any] | None, seed: int = 0, **arguments: Any
) -> tuple[Trainer, list[float]]:
    """A trainer of a network with AdamW, and the list that its losses will be in."""
    torch.manual_seed(seed)
    model = TwoLayers()
    losses: list[float] = []
    recorder = At("batch_end", lambda state: losses.append(state.total_loss_dict["loss/train/total"].item()))
    arguments = {"max_duration": "1ep", "device": "cpu", "deepspeed_config": config, **arguments}
    arguments.setdefault("optimizers", torch.optim.AdamW(model.parameters(), lr=0.05))
    if config is not None:
        config.setdefault("train_batch_size", len(batches[0][0]) * dist.get_world_size())
    callbacks = [recorder, *arguments.pop("callbacks", [])]
    return trainer_of(model, batches, callbacks=callbacks, seed=1, **arguments), losses


def full_weights(trainer: Trainer) -> torch.Tensor:
    """The weights of all parameters, whichever process has them."""
    import deepspeed

    parameters = list(trainer.state.model.parameters())
    with deepspeed.zero.GatheredParameters([one for one in parameters if hasattr(one, "ds_id")]):
        return weights_of(trainer.state.model).float()


def alone(batches: list[Any], **arguments: Any) -> Run:
    """Losses and weights of one process without DeepSpeed."""
    trainer, losses = make(batches, None, **arguments)
    with trainer:
        trainer.fit()
    return torch.tensor(losses), weights_of(trainer.state.model)


def train(configs: list[dict[str, Any]], sizes: Any = None, **arguments: Any) -> list[Run]:
    """Losses and weights of a training for each configuration; runs in each process."""
    found = []
    for config in configs:
        trainer, losses = make(local_shard(regression_data(3, 12), sizes), dict(config), **arguments)
        with trainer:
            trainer.fit()
            found.append((torch.tensor(losses), full_weights(trainer)))
        assert "deepspeed" not in str(torch.nn.functional.linear.__module__), "put back by close()"
    return found


def schedule_and_clip(configs: list[dict[str, Any]]) -> list[Run]:
    return train(configs, algorithms=GradientClipping("norm", 0.05), schedulers=LinearScheduler(1.0, 0.1))


def check(found: Any, expected: Run) -> None:
    """Compare what each process returned for each configuration."""
    for rank, runs in enumerate(found):
        for number, run in enumerate(runs):
            for value, wanted in zip(run, expected, strict=True):
                message = f"rank {rank}, configuration {number}: {value} is not {wanted}"
                torch.testing.assert_close(value, wanted, rtol=0, atol=1e-5, msg=message)


def test_every_stage_matches_single_process_training(one_rank: Ranks, two_ranks: Ranks):
    expected = alone(regression_data(3, 12))
    # Also with microbatches, the last of which is smaller.
    micro = [config_of(stage, train_micro_batch_size_per_gpu=4) for stage in STAGES]
    configs = [config_of(stage) for stage in STAGES] + micro
    check(one_rank.run(train, configs), expected)
    check(two_ranks.run(train, configs), expected)


def test_unequal_batches_match_the_combined_batch(two_ranks: Ranks):
    configs = [config_of(stage, train_batch_size=16) for stage in STAGES]
    check(two_ranks.run(_ragged, configs), alone(regression_data(3, 12)))


def _offload() -> list[Run]:
    """Train with CPU offload, and return the error for microbatches that are not configured."""
    config = {"zero_optimization": {"stage": 2, **SMALL, "offload_optimizer": {"device": "cpu"}}}
    trainer, losses = make(local_shard(regression_data(3, 12)), config)
    with trainer:
        trainer.fit()
        weights = full_weights(trainer)
        with pytest.raises(ValueError, match="one microbatch"):
            trainer.fit(duration="1ep", device_train_microbatch_size=3)
    micro, _ = make(local_shard(regression_data(3, 12)), config, device_train_microbatch_size=4)
    with micro:
        micro.fit()
        return [(torch.tensor(losses), weights), (torch.tensor(losses), full_weights(micro))]


def test_cpu_offloaded_optimizer_trains_alike(two_ranks: Ranks):
    check(two_ranks.run(_offload), alone(regression_data(3, 12)))


def _ragged(configs: list[dict[str, Any]]) -> list[Run]:
    return train(configs, (8, 4), device_train_microbatch_size=3)


def test_the_learning_rate_follows_and_gradients_are_clipped(two_ranks: Ranks):
    algorithms, schedulers = GradientClipping("norm", 0.05), LinearScheduler(1.0, 0.1)
    sgd = alone(regression_data(3, 12), algorithms=algorithms, schedulers=schedulers)
    check(two_ranks.run(schedule_and_clip, [config_of(stage) for stage in STAGES]), sgd)
    plain = alone(regression_data(3, 12))
    assert (sgd[1] - plain[1]).abs().max() > 1e-3  # or the comparison would say nothing


def _evaluate(stage: int) -> dict[str, Any]:
    batches = local_shard(regression_data(3, 12))
    trainer, _ = make(batches, config_of(stage), eval_dataloader=batches)
    with trainer:
        trainer.fit()
        trainer.eval()
        outputs = trainer.predict(batches[:1])[0]
        weights = trainer._run.strategy.weights()  # type: ignore[attr-defined]
        if not weights:
            return {"outputs": outputs}
        model = TwoLayers()
        model.load_state_dict(weights)
        with torch.no_grad():
            return {"outputs": outputs, "expected": model(batches[0]), "weights": weights_of(model)}


@pytest.mark.parametrize("stage", [0, 3])
def test_evaluation_and_prediction_use_full_weights(two_ranks: Ranks, stage: int):
    first, other = two_ranks.run(_evaluate, stage)
    assert "weights" not in other or stage == 0  # only the first process has them all
    torch.testing.assert_close(first["outputs"], first["expected"])
    torch.testing.assert_close(first["weights"], alone(regression_data(3, 12))[1], rtol=0, atol=1e-5)


def _short(config: dict[str, Any], precision: str | None) -> dict[str, Any]:
    seen: list[Any] = []
    batches = local_shard(regression_data(3, 12))
    trainer, losses = make(
        batches,
        config,
        precision=precision,
        eval_dataloader=batches,
        callbacks=[
            At("before_forward", lambda state: seen.append((state.batch[0].dtype, state.precision.value))),
            At("eval_before_forward", lambda state: seen.append((state.batch[0].dtype, state.precision.value))),
        ],
    )
    with trainer:
        trainer.fit()
        try:
            trainer.fit(duration="1ep", precision="fp32")
            refusal = ""
        except ValueError as error:
            refusal = str(error)
        parameter = next(trainer.state.model.parameters())
        return {"losses": losses[:3], "seen": set(seen), "weights": parameter.dtype, "refusal": refusal}


@pytest.mark.parametrize("stage", STAGES)
def test_bfloat16_is_the_format_of_weights_and_batches(two_ranks: Ranks, stage: int):
    expected, _ = alone(regression_data(3, 12))
    for found in two_ranks.run(_short, config_of(stage, bf16={"enabled": True}), None):
        assert found["weights"] is torch.bfloat16
        assert found["seen"] == {(torch.bfloat16, "amp_bf16")}
        torch.testing.assert_close(torch.tensor(found["losses"]), expected, rtol=0.1, atol=0.05)
        assert "engine was created for 'amp_bf16'" in found["refusal"]


def test_autocast_leaves_weights_and_batches_in_float32(two_ranks: Ranks):
    config = config_of(1, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    for found in two_ranks.run(_short, config, "amp_bf16"):
        assert found["weights"] is torch.float32
        assert found["seen"] == {(torch.float32, "amp_bf16")}


def _stop_and_resume(folder: str, stages: tuple[int, ...], sections: dict[str, Any]) -> list[Any]:
    found = []
    for stage in stages:
        saving = {"save_folder": f"{folder}/{stage}", "save_interval": "1ba", "run_name": "run"}
        batches = local_shard(regression_data(4, 12))
        whole, losses = make(batches, config_of(stage, **sections), save_folder=f"{folder}/{stage}-whole")
        with whole:
            whole.fit()
            expected = full_weights(whole)
        stopped, before = make(batches, config_of(stage, **sections), max_duration="2ba", **saving)
        with stopped:
            stopped.fit()
        # With other weights to begin with, so that those of the checkpoint show.
        resumed, after = make(batches, config_of(stage, **sections), seed=7, autoresume=True, **saving)
        with resumed:
            resumed.fit()
            found.append((expected, full_weights(resumed), losses, before + after, resumed.saved_checkpoints))
    return found


@pytest.mark.parametrize("sections", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_training_resumes_where_it_stopped(two_ranks: Ranks, tmp_path: Path, sections: dict[str, Any]):
    for runs in two_ranks.run(_stop_and_resume, str(tmp_path), STAGES, sections):
        for expected, weights, losses, parts, saved in runs:
            assert torch.equal(weights, expected)
            assert parts == losses
            assert [Path(path).name for path in saved] == ["ep0-ba1", "ep0-ba2", "ep0-ba3", "ep0-ba4"]
    newest = tmp_path / "2" / "latest-rank0.pt"
    assert newest.resolve().name == "ep0-ba4"
    assert (newest / "latest").read_text() == "."
    assert {"composer.pt", "zero_to_fp32.py", "mp_rank_00_model_states.pt"} <= {path.name for path in newest.iterdir()}


def _save(folder: str, stage: int, **arguments: Any) -> torch.Tensor:
    trainer, _ = make(local_shard(regression_data(2, 12)), config_of(stage), save_folder=folder, **arguments)
    with trainer:
        trainer.fit()
        return full_weights(trainer)


def _save_weights(folder: str, stage: int) -> torch.Tensor:
    return _save(folder, stage, save_weights_only=True)


def _begin(path: str, stage: int, config: dict[str, Any] | None = None, **arguments: Any) -> torch.Tensor:
    config = config_of(stage) if config is None else config
    trainer, _ = make(local_shard(regression_data(2, 12)), config, seed=7, load_path=path, **arguments)
    with trainer:
        return full_weights(trainer)


def _begin_with_weights(path: str, stage: int) -> torch.Tensor:
    return _begin(path, stage, load_weights_only=True)


@pytest.mark.parametrize("stage", [2, 3])
def test_weights_are_exported_as_one_file(two_ranks: Ranks, tmp_path: Path, stage: int):
    weights, _ = two_ranks.run(_save_weights, str(tmp_path), stage)
    path = tmp_path / "ep1-ba2-rank0.pt"
    with trainer_of(TwoLayers(), load_path=str(path), load_weights_only=True) as trainer:
        assert torch.equal(weights_of(trainer.state.model), weights)
    for begun in two_ranks.run(_begin_with_weights, str(path), stage):
        assert torch.equal(begun, weights)


def _refusals(folder: str) -> list[str]:
    """Return the errors for checkpoints that do not fit."""
    _save(f"{folder}/2", 2)
    _save(f"{folder}/3", 3)
    path = f"{folder}/2/ep1-ba2"
    attempts = [
        lambda: _begin(path, 1),
        lambda: _begin(f"{folder}/3/ep1-ba2", 3, load_weights_only=True),
        lambda: trainer_of(load_path=path),
        lambda: make(regression_data(), config_of(2), save_folder=folder, save_async=True),
    ]
    message = []
    for attempt in attempts:
        with pytest.raises(ValueError) as caught:
            attempt()
        message.append(str(caught.value))
    assert torch.equal(_begin(path, 2, load_weights_only=True), _begin(path, 2))
    return message


def test_incompatible_checkpoints_are_rejected_with_a_remedy(one_rank: Ranks, tmp_path: Path):
    (message,) = one_rank.run(_refusals, str(tmp_path))
    stage, alone_weights, elsewhere, asynchronous = message
    assert "stage=2, but this run has stage=1" in stage
    assert "zero_to_fp32.py" in stage
    assert "stage 3" in alone_weights
    assert "deepspeed_config" in elsewhere
    assert "save_async" in asynchronous


def _read_evil(path: str) -> None:
    from composer.checkpoint import UnsafeCheckpointError, file_format
    from composer.parallel.deepspeed import _read_without_code

    with pytest.raises(UnsafeCheckpointError, match="mkdir"):
        _read_without_code(file_format.read, path)


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/this-must-never-be",)


def test_no_code_of_a_file_is_run(one_rank: Ranks, tmp_path: Path):
    torch.save({"optimizer": _Evil()}, tmp_path / "evil.pt")
    one_rank.run(_read_evil, str(tmp_path / "evil.pt"))


def _refused(what: str) -> str:
    model = TwoLayers()
    optimizers: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    extra: dict[str, Any] = {}
    if what == "two optimizers":
        optimizers = model.optimizers()
    elif what == "auto":
        extra["device_train_microbatch_size"] = "auto"
    elif what == "adaptive":
        extra["algorithms"] = GradientClipping("adaptive", 0.1)
    elif what == "two bounds":
        extra["algorithms"] = [GradientClipping("norm", 0.1), GradientClipping("norm", 0.2)]
    elif what == "monitor":
        extra["callbacks"] = OptimizerMonitor()
    else:
        method: Algorithm = SAM() if what == "sam" else EMA()
        extra["algorithms"] = method
    with pytest.raises(ValueError) as caught:
        trainer_of(model, optimizers=optimizers, device="cpu", deepspeed_config={"train_batch_size": 2}, **extra)
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("two optimizers", "['Muon', 'AdamW']"),
        ("auto", "'auto'"),
        ("adaptive", "GradientClipping"),
        ("two bounds", "more than once"),
        ("monitor", "OptimizerMonitor"),
        ("sam", "SAM"),
        ("ema", "EMA"),
    ],
)
def test_unsupported_settings_are_rejected(one_rank: Ranks, what: str, message: str):
    assert message in one_rank.run(_refused, what)[0]


def _default_optimizer() -> tuple[str, set[str]]:
    before = set(os.environ)
    batches = regression_data(3, 12)
    config = config_of(2, train_batch_size=12)
    with pytest.warns(ComposerWarning, match="No optimizers"):
        trainer = trainer_of(TwoLayers(), batches, optimizers=None, device="cpu", deepspeed_config=config)
    with trainer:
        trainer.fit()
        with pytest.raises(ValueError, match="find_lr"):
            trainer.find_lr()
        return type(trainer.state.optimizers[0]).__name__, set(os.environ) - before


def test_the_default_optimizer_is_made_and_the_environment_left_alone(one_rank: Ranks):
    ((name, added),) = one_rank.run(_default_optimizer)
    assert name == "DecoupledSGDW"
    assert not added & {"LOCAL_RANK", "DS_ACCELERATOR"}


def _compiled(configs: list[dict[str, Any]]) -> list[Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, at DeepSpeed's hooks
        return train(configs, compile_config={"backend": "eager"})


def test_a_compiled_model_trains_alike(one_rank: Ranks):
    check(one_rank.run(_compiled, [config_of(stage) for stage in STAGES]), alone(regression_data(3, 12)))
