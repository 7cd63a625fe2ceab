"""A retry after OOM draws the same random numbers from every generator, and has the same buffers and metrics."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from composer import rng
from tests.common import At, Regression, regression_data, trainer_of
from tests.simulated_oom import Limit, RunsOut, digest


class Noisy(RunsOut):
    """Draws from all global generators in each forward pass, and keeps a count and a sum of what it drew."""

    get_metrics, update_metric = Regression.get_metrics, Regression.update_metric
    metrics_wanted = True

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("drawn", torch.zeros(3))

    def forward(self, batch):
        self.seen = self.seen + len(batch[0])  # replaced, unlike the running statistics
        noise = torch.tensor([random.gauss(0, 1), np.random.standard_normal(), torch.randn(()).item()])
        self.drawn += noise
        return super().forward((batch[0] + noise.sum(), batch[1]))


@pytest.mark.parametrize("where", ["forward", "backward", "after_backward"])
@pytest.mark.parametrize("since", [0, 1, 4, 9])
def test_MicrobatchOOM_restores_all_generators_buffers_and_metrics(where, since) -> None:
    """Before and after it is known which buffers stay in place."""

    def run(limit: Limit, size, sizes: dict[int, int]) -> tuple:
        rng.seed_all(3)
        model = Noisy(limit)

        def begin(state) -> None:
            limit.batch = state.timestamp.batch.value
            state.device_train_microbatch_size = sizes.get(limit.batch, state.device_train_microbatch_size)

        failing = At("after_backward", lambda state: limit.check("after_backward", len(state.batch[0])))
        trainer = trainer_of(
            model,
            regression_data(12, 8),
            callbacks=[At("batch_start", begin), failing],
            device_train_microbatch_size=size,
            seed=7,
        )
        trainer.fit()
        metric = trainer.state.train_metrics["MeanSquaredError"]
        found = digest(model), random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]
        return *found, metric.sum_squared_error.item(), metric.total.item()

    with rng.preserve_rng_state():
        limit = Limit(where, 2, since=since)
        assert run(limit, "auto", {}) == run(Limit(), 8, {since: 2})
        assert limit.failures == [8, 4]
