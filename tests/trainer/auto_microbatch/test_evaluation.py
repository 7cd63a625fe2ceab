"""Automatic microbatch size in evaluation."""

from __future__ import annotations

import pytest
import torch

from composer import Evaluator
from composer.core import microbatch_sizes as size_cache
from tests.common import At, Received, Regression, regression_data, trainer_of
from tests.ranks import Ranks


class Limited(Regression):
    """Evaluates on a few samples at once."""

    def __init__(self, most: int, where: str = "forward") -> None:
        super().__init__(metrics=True)
        self.most, self.where, self.failures = most, where, []

    def check(self, where: str, samples: int) -> None:
        if where == self.where and not self.training and samples > self.most:
            self.failures.append(samples)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def forward(self, batch):
        self.check("forward", len(batch[0]))
        return super().forward(batch)

    def update_metric(self, batch, outputs, metric):
        super().update_metric(batch, outputs, metric)
        self.check("metric", len(batch[0]))


def evaluated(model: Limited, data, size, **arguments) -> tuple[float, int | None, Received]:
    log = Received()
    evaluator = Evaluator(label="test", dataloader=data, device_eval_microbatch_size=size)
    trainer = trainer_of(model, eval_dataloader=evaluator, loggers=log, **arguments)
    trainer.eval()
    return trainer.state.eval_metrics["test"]["MeanSquaredError"].compute().item(), evaluator, log


@pytest.mark.parametrize("where", ["forward", "metric"])
def test_each_sample_is_counted_once(where) -> None:
    data = [*regression_data(2, 8), *regression_data(1, 3)]
    torch.manual_seed(0)
    model = Limited(2, where)
    value, evaluator, log = evaluated(model, data, "auto")
    torch.manual_seed(0)
    expected, _, _ = evaluated(Limited(8), data, 2)
    assert value == expected
    assert evaluator.device_eval_microbatch_size == 2
    assert model.failures == [8, 4]
    assert [size for _, size in log.series("trainer/test/device_eval_microbatch_size")] == [2]


def test_without_a_failure_it_is_the_full_batch() -> None:
    _, evaluator, _ = evaluated(Limited(8), [*regression_data(1, 8), *regression_data(1, 3)], "auto")
    assert evaluator.device_eval_microbatch_size == 8


def test_failure_of_a_later_microbatch_splits_the_rest() -> None:
    seen = At("eval_after_forward", lambda state: len(state.batch[0]))

    class Later(Limited):
        def forward(self, batch):
            self.most = 1 if batch[0][0, 0] == 4 else 4
            return super().forward(batch)

    x = torch.arange(8.0)[:, None].expand(8, 4)
    model = Later(4)
    evaluated(model, [(x, x[:, :1])], "auto", callbacks=seen)
    assert model.failures == [8, 4, 2]
    assert seen.found == [4, 1, 1, 1, 1]


def test_a_single_sample_that_does_not_fit() -> None:
    with pytest.raises(RuntimeError, match=r"single sample.* evaluation on 'test'; batch of shapes \[\(4, 4\)") as c:
        evaluated(Limited(0), regression_data(1, 4), "auto")
    assert isinstance(c.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_are_raised() -> None:
    class Wrong(Limited):
        def forward(self, batch):
            raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        evaluated(Wrong(2), regression_data(1, 4), "auto")


def test_size_grows_when_memory_is_free(monkeypatch) -> None:
    monkeypatch.setattr(size_cache, "_PATIENCE", 1)
    model = Limited(2)
    sizes = At("eval_after_forward", lambda state: len(state.batch[0]))
    room = At("eval_batch_end", lambda state: setattr(model, "most", 8))
    evaluated(model, regression_data(4, 8), "auto", callbacks=[sizes, room])
    assert sizes.found == [2, 2, 2, 2, 4, 4, 4, 4, 8]


def test_size_is_found_while_training() -> None:
    model = Limited(2)
    evaluator = Evaluator(label="test", dataloader=regression_data(2, 8), device_eval_microbatch_size="auto")
    trainer_of(model, eval_dataloader=evaluator, max_duration="2ep").fit()
    assert model.failures == [8, 4]  # the second evaluation knows


def on_two(arguments) -> tuple[float, list[int]]:
    from composer import dist

    torch.manual_seed(0)
    model = Limited(2 if dist.get_global_rank() else 8)
    value, _, _ = evaluated(model, regression_data(3, 8), "auto", **arguments)
    return value, model.failures


def test_each_rank_finds_its_own_size(two_ranks: Ranks) -> None:
    (one, none), (two, failures) = two_ranks.run(on_two, {})
    assert one == two
    assert (none, failures) == ([], [8, 4])


def refused() -> None:
    with pytest.raises(ValueError, match="'test': device_eval_microbatch_size='auto' does not work with fsdp"):
        on_two({"parallelism_config": {"fsdp": {}}})


def test_raises_if_weights_are_all_gathered(two_ranks: Ranks) -> None:
    two_ranks.run(refused)
