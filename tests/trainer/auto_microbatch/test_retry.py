"""MicrobatchOOM on one process: a batch that runs out of memory trains as a smaller microbatch size would have."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import nn

from composer import Algorithm, DataSpec
from composer.algorithms import EMA, SAM, GradientClipping
from composer.core import microbatch_sizes as size_cache
from tests.common import At, Received, Regression, TwoLayers, regression_data, trainer_of, weights
from tests.simulated_oom import Limit, RunsOut, StepsRunOut, digest, train

PLACES = ["forward", "loss", "backward", "step"]


@pytest.mark.parametrize("where", PLACES)
def test_MicrobatchOOM_equals_a_manual_size(where) -> None:
    """Bit for bit: weights, running statistics, states of the optimizer, random numbers."""
    found, sizes, failures = train(Limit(where, 2), "auto")
    expected, *_ = train(Limit(), 2)
    assert found == expected
    assert sizes == [2] * 6
    assert failures == [8, 4]


@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
def test_MicrobatchOOM_in_the_middle_of_training(where) -> None:
    found, sizes, failures = train(Limit(where, 4, since=3), "auto")
    expected, *_ = train(Limit(), None, sizes={3: 4})
    assert found == expected
    assert sizes == [8, 8, 8, 4, 4, 4]
    assert failures == [8]


@pytest.mark.parametrize(
    "error",
    [
        lambda: RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity)"),
        lambda: RuntimeError("CUDA error: out of memory"),
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ..."),
        lambda: RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_MicrobatchOOM_of_every_spelling(error) -> None:
    found, sizes, _ = train(Limit("forward", 4, error=error), "auto")
    assert found == train(Limit(), 4)[0]
    assert sizes == [4] * 6


def test_other_errors_are_raised() -> None:
    limit = Limit("forward", 4, error=lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(limit, "auto")
    assert limit.failures == [8]


@pytest.mark.parametrize("where", PLACES)
def test_a_single_sample_that_does_not_fit(where) -> None:
    limit = Limit(where, 0)
    with pytest.raises(RuntimeError, match=r"single sample.* batch of shapes \[\(8, 4\), \(8, 1\)\]") as caught:
        train(limit, "auto", norm=False)
    assert limit.failures == [8, 4, 2, 1]
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_without_a_failure_it_is_the_full_batch() -> None:
    assert train(Limit(), "auto")[:2] == (train(Limit(), None)[0], [8] * 6)


def test_a_batch_of_an_odd_number_of_samples() -> None:
    found, sizes, failures = train(Limit("forward", 3), "auto", samples=11)
    assert (sizes, failures) == ([3] * 6, [11, 6])
    assert found == train(Limit(), 3, samples=11)[0]


def test_a_short_last_batch_is_not_a_new_size() -> None:
    log = Received()
    data = [*regression_data(2, 8), *regression_data(1, 3)]
    for limit, expected in ((Limit("forward", 4), [4, 4, 4]), (Limit(), [8, 8, 8])):
        log = Received()
        trainer_of(RunsOut(limit), data, device_train_microbatch_size="auto", loggers=log).fit()
        assert [size for _, size in log.series("trainer/device_train_microbatch_size")] == expected


def test_legacy_spelling() -> None:
    torch.manual_seed(0)
    trainer = trainer_of(RunsOut(Limit("forward", 4)), regression_data(2, 8), grad_accum="auto")
    assert trainer.state.auto_microbatching
    trainer.fit()
    assert trainer.state.device_train_microbatch_size == 4


def test_fit_accepts_auto_and_a_number_disables_it() -> None:
    model = RunsOut(Limit("forward", 4))
    trainer = trainer_of(model, regression_data(2, 8), device_train_microbatch_size=2)
    trainer.fit(device_train_microbatch_size="auto")
    assert trainer.state.device_train_microbatch_size == 4
    trainer.fit(duration="1ep", device_train_microbatch_size="auto")
    assert model.limit.failures == [8]  # what was found stays
    trainer.fit(duration="1ep", device_train_microbatch_size=3)
    assert (trainer.state.device_train_microbatch_size, trainer.state.auto_microbatching) == (3, False)
    model.limit.size = 1
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit(duration="1ep")


# ------------------------------------------------------------------------------------------ what is remembered


def test_sizes_are_remembered_by_shape() -> None:
    """Progressive resizing: small images, large ones, small ones again."""

    class OfPixels(Regression):
        failures: list[tuple[int, int]] = []

        def forward(self, batch):
            samples, width = len(batch[0]), batch[0].shape[1]
            if samples * width > 16:
                self.failures.append((samples, width))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return batch[0].mean(1, keepdim=True) * self.linear.weight.sum()

    small, large, larger = ((torch.ones(8, width), torch.ones(8, 1)) for width in (2, 4, 6))
    sizes = At("batch_end", lambda state: state.device_train_microbatch_size)
    model = OfPixels()
    data = [small, large, small, large, larger, small]
    trainer_of(model, data, device_train_microbatch_size="auto", callbacks=sizes).fit()
    assert sizes.found == [8, 4, 8, 4, 2, 8]
    assert model.failures == [(8, 4), (4, 6)]  # the largest begins with what the one before could


def test_size_grows_when_memory_is_free(monkeypatch) -> None:
    monkeypatch.setattr(size_cache, "_PATIENCE", 2)
    found, sizes, failures = train(Limit("forward", 2, until=2), "auto")
    assert (sizes, failures) == ([2, 2, 4, 4, 4, 8], [8, 4])
    assert found == train(Limit(), 2, sizes={2: 4, 5: 8})[0]


@pytest.mark.parametrize("where", ["forward", "step"])
def test_failed_larger_size_changes_nothing_and_is_postponed(monkeypatch, where) -> None:
    monkeypatch.setattr(size_cache, "_PATIENCE", 1)
    found, sizes, failures = train(Limit(where, 4), "auto")
    assert sizes == [4] * 6
    assert failures == [8, 8, 8]  # in batches 0, 1 and, twice as long after it, 4
    assert found == train(Limit(), 4)[0]


def test_the_size_is_logged_and_continues_from_a_checkpoint(tmp_path) -> None:
    log = Received()
    model = RunsOut(Limit("forward", 2), norm=False)
    trainer = trainer_of(model, regression_data(4, 8), device_train_microbatch_size="auto", loggers=log)
    trainer.fit()
    assert log.series("trainer/device_train_microbatch_size") == [(step, 2) for step in range(4)]
    path = trainer.save_checkpoint(str(tmp_path / "saved.pt"))

    def resumed(size) -> tuple[list[int], int | None]:
        again = RunsOut(Limit("forward", 2), norm=False)
        trainer = trainer_of(again, regression_data(4, 8), load_path=path, device_train_microbatch_size=size)
        trainer.fit(duration="1ep")
        return again.limit.failures, trainer.state.device_train_microbatch_size

    assert resumed("auto") == ([], 2)
    assert resumed(1) == ([], 1)


# ------------------------------------------------------------------------------------------ with others


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
@pytest.mark.parametrize("kind", ["two", "lbfgs", "sam", "methods"])
def test_MicrobatchOOM_with_optimizers_and_methods(where, kind) -> None:
    def run(limit: Limit, size) -> tuple[str, int | None]:
        torch.manual_seed(0)
        model = RunsOut(limit)
        StepsRunOut.limit = limit
        parameters = list(model.parameters())
        optimizers = {
            "two": lambda: [torch.optim.SGD(parameters[:4], lr=0.1), StepsRunOut(parameters[4:], lr=0.01)],
            "lbfgs": lambda: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
        }.get(kind, lambda: StepsRunOut(parameters, lr=0.01))()
        algorithms = {"sam": [SAM(interval=2)], "methods": [EMA(half_life="2ba"), GradientClipping("norm", 0.1)]}
        trainer = trainer_of(
            model,
            regression_data(4, 8),
            optimizers=optimizers,
            algorithms=algorithms.get(kind),
            device_train_microbatch_size=size,
            seed=7,
        )
        StepsRunOut.samples = lambda: trainer.state.device_train_microbatch_size or 8
        trainer.fit()
        StepsRunOut.limit = Limit()
        return digest(model, *trainer.state.optimizers), trainer.state.device_train_microbatch_size

    limit = Limit(where, 4)
    found, size = run(limit, "auto")
    if kind == "lbfgs" and where == "step":
        assert not limit.failures  # its step is not ours
        return
    assert (found, size) == run(Limit(), 4)
    assert limit.failures == [8]


def test_MicrobatchOOM_in_the_second_evaluation_of_a_closure() -> None:
    """At the worst point of SAM: the weights there, and the way back, are untouched."""
    for closing in (True, False):
        torch.manual_seed(0)
        model = RunsOut(Limit("forward", 4) if closing else None)
        if closing:
            model.limit.since = 1  # is set below, between the evaluations

        arguments = {"device_train_microbatch_size": "auto"} if closing else {}
        sizes = At("after_train_batch", lambda state: state.device_train_microbatch_size)
        trainer = trainer_of(
            model,
            regression_data(1, 8),
            algorithms=SAM(),
            callbacks=[sizes, At("after_train_batch", begin_to_fail if closing else halve)],
            seed=7,
            **arguments,
        )
        trainer.fit()
        if closing:
            assert (sizes.found, model.limit.failures) == ([8, 4], [8])
            found = digest(model)
    assert digest(model) == found


def begin_to_fail(state) -> None:
    state.model.limit.batch = 1


def halve(state) -> None:
    state.device_train_microbatch_size = 4


def test_MicrobatchOOM_with_scaled_gradients() -> None:
    def run(limit: Limit, size) -> torch.Tensor:
        torch.manual_seed(0)
        model = TwoLayers()
        trainer = trainer_of(model, regression_data(3, 8), device_train_microbatch_size=size, seed=7)
        trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = trainer.state.optimizers[0]
        optimizer.register_step_post_hook(
            lambda *_: limit.check("step", trainer.state.device_train_microbatch_size or 8)
        )
        trainer.fit()
        return weights(trainer)

    limit = Limit("step", 4)
    assert torch.equal(run(limit, "auto"), run(Limit(), 4))
    assert limit.failures == [8]


def test_MicrobatchOOM_of_a_compiled_model() -> None:
    def run(limit: Limit, size) -> torch.Tensor:
        torch.manual_seed(0)
        model = TwoLayers()
        trainer = trainer_of(
            model,
            regression_data(2, 8),
            device_train_microbatch_size=size,
            compile_config={"backend": "eager"},
            callbacks=At("after_loss", lambda state: limit.check("loss", len(state.batch[0]))),
        )
        trainer.fit()
        return weights(trainer)

    limit = Limit("loss", 4)
    assert torch.equal(run(limit, "auto"), run(Limit(), 4))
    assert limit.failures == [8]


def test_batch_edited_by_an_algorithm_is_restored() -> None:
    """Edited in place before the loss, which fails, so that it is not put back."""

    class Shift(Algorithm):
        def before_loss(self, state, logger):
            self.kept = state.batch["y"]
            state.batch["y"] = self.kept + 1

        def after_loss(self, state, logger):
            state.batch["y"] = self.kept

    class ByName(RunsOut):
        def forward(self, batch):
            return super().forward((batch["x"], batch["y"]))

        def loss(self, outputs, batch):
            return super().loss(outputs, (batch["x"], batch["y"]))

    data = [{"x": x, "y": y} for x, y in regression_data(2, 8)]
    found = []
    for limit, size in ((Limit("loss", 4), "auto"), (Limit(), 4)):
        torch.manual_seed(0)
        model = ByName(limit)
        trainer_of(model, data, algorithms=Shift(), device_train_microbatch_size=size, seed=7).fit()
        found.append(digest(model))
    assert found[0] == found[1]


def test_metrics_of_training_count_each_sample_once() -> None:
    class Measured(RunsOut):
        get_metrics, update_metric = Regression.get_metrics, Regression.update_metric
        metrics_wanted = True

    found = []
    for limit, size in ((Limit("step", 4), "auto"), (Limit("backward", 2, since=1), "auto"), (Limit(), None)):
        torch.manual_seed(0)
        model, log = Measured(limit), Received()
        optimizer = StepsRunOut(model.parameters(), lr=0.0)
        StepsRunOut.limit = limit
        trainer = trainer_of(
            model, regression_data(3, 8), device_train_microbatch_size=size, loggers=log, optimizers=optimizer
        )
        StepsRunOut.samples = lambda trainer=trainer: trainer.state.device_train_microbatch_size or 8
        trainer.fit()
        StepsRunOut.limit = Limit()
        found.append(trainer.state.train_metrics["MeanSquaredError"].total.item())
    assert found == [24, 24, 24]


def test_memory_of_a_failed_pass_is_freed() -> None:
    held: list[weakref.ref] = []

    class Holding(RunsOut):
        def forward(self, batch):
            large = batch[0].repeat(2, 1)
            if len(batch[0]) == 8:
                held.append(weakref.ref(large))
            return super().forward(batch)

    alive = At("before_forward", lambda state: [reference() is not None for reference in held])
    trainer = trainer_of(
        Holding(Limit("forward", 4)),
        regression_data(1, 8),
        device_train_microbatch_size="auto",
        callbacks=alive,
        loggers=Received(),
    )
    gc.disable()
    try:
        trainer.fit()
    finally:
        gc.enable()
    assert alive.found == [[], [False], [False]]


def test_search_does_not_change_iterables_that_count_samples() -> None:
    data = DataSpec(regression_data(2, 8), get_num_samples_in_batch=lambda batch: len(batch[0]))
    trainer = trainer_of(RunsOut(Limit("loss", 3)), data, device_train_microbatch_size="auto")
    trainer.fit()
    assert trainer.state.timestamp.sample == 16
    assert trainer.state.device_train_microbatch_size == 2


def test_out_of_memory_is_logged(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="composer"):
        train(Limit("forward", 4), "auto")
    assert [r.message for r in caplog.records if "Out of memory" in r.message] == [
        "Out of memory with a microbatch of 8 samples; retrying the batch with fewer."
    ]


def test_sync_batchnorm_in_single_process_is_accepted() -> None:
    model = RunsOut(Limit("forward", 4))
    model.norm = nn.SyncBatchNorm(8).eval()
    trainer = trainer_of(model, regression_data(1, 8), device_train_microbatch_size="auto")
    assert trainer.state.auto_microbatching


@pytest.mark.parametrize("since", [1, 3, 4, 5])
def test_MicrobatchOOM_where_a_frozen_layer_is_freed_later(since) -> None:
    """Its running statistics change for the first time in the batch that does not fit."""
    found, sizes, failures = train(Limit("loss", 4, since=since), "auto", thaw=since)
    assert found == train(Limit(), None, sizes={since: 4}, thaw=since)[0]
    assert failures == [8]
    assert sizes[since - 1 :] == [8] + [4] * (6 - since)
