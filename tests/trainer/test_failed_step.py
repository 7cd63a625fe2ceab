"""Training continues after an exception in a step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composer import Algorithm, Callback, DataSpec, Event
from composer.algorithms import LabelSmoothing
from composer.warnings import ComposerWarning
from tests.common import Regression, Unsized, classifier, regression_data, trainer_of, weights

NUM_BATCHES = 5
DATA = regression_data(NUM_BATCHES)


class BoomError(RuntimeError):
    """What the tests raise."""


class Once(Callback):
    """Raises at an event of a batch, the first time."""

    def __init__(self, event: str, batch: int = 2, error: type[BaseException] = BoomError) -> None:
        self.event, self.batch, self.error = Event(event), batch, error

    def run_event(self, event, state, logger):
        if event is self.event and state.timestamp.batch == self.batch:
            self.batch = -1
            raise self.error


class Samples(Dataset):
    """Of the batches; one of them fails to be fetched, once."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 2 * NUM_BATCHES

    def __getitem__(self, index: int):
        if index == self.bad:
            self.bad = None
            raise BoomError
        x, y = DATA[index // 2]
        return x[index % 2], y[index % 2]


class Stream(IterableDataset):
    """The samples one after the other."""

    def __iter__(self):
        yield from (Samples()[index] for index in range(2 * NUM_BATCHES))


def fails_once(data: Any) -> Any:
    """Batches of data, read through a generator that fails in the third batch, in the first pass."""

    class Failing:
        failed = False

        def __iter__(self):
            for number, batch in enumerate(data):
                if number == 2 and not self.failed:
                    self.failed = True
                    raise BoomError
                yield batch

    return Failing()


LOADERS = {
    "loader": lambda: DataLoader(Samples(), batch_size=2),
    "shuffled": lambda: DataLoader(Samples(), batch_size=2, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "list": lambda: DATA,
    "unsized": lambda: Unsized(DATA),
    "iterator": lambda: iter(DATA),
}
BEFORE_STEP = [
    "before_dataloader", "after_dataloader", "batch_start", "before_train_batch", "before_forward", "after_forward",
    "before_loss", "after_loss", "before_backward", "after_backward", "after_train_batch",
]  # fmt: skip


def fitted(data: Any, **arguments: Any) -> tuple[torch.Tensor, tuple[int, int]]:
    """Weights and counts after an epoch, begun as often as it fails."""
    torch.manual_seed(0)
    trainer = trainer_of(data=data, seed=1, **arguments)
    for _ in range(2):
        try:
            trainer.fit()
            break
        except (BoomError, KeyboardInterrupt):
            pass
    timestamp = trainer.state.timestamp
    return weights(trainer), (int(timestamp.batch), int(timestamp.sample))


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("event", BEFORE_STEP)
def test_the_batch_is_trained_by_the_next_fit(loader: str, event: str) -> None:
    expected, counts = fitted(LOADERS[loader]())
    assert counts == (NUM_BATCHES, 2 * NUM_BATCHES)
    for batch in (0, 2, NUM_BATCHES - 1):
        found = fitted(LOADERS[loader](), callbacks=Once(event, batch))
        assert found[1] == counts
        assert torch.equal(found[0], expected)


@pytest.mark.parametrize("event", ["batch_end", "batch_checkpoint", "epoch_end"])
def test_counted_batch_is_not_trained_again(event: str) -> None:
    expected, counts = fitted(DATA, max_duration="2ep")
    found = fitted(DATA, callbacks=Once(event, NUM_BATCHES if event == "epoch_end" else 3), max_duration="2ep")
    assert found[1] == counts
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize("size", [1, "auto"])
@pytest.mark.parametrize("loader", ["loader", "list"])
def test_partial_gradients_are_dropped(loader: str, size: Any) -> None:
    expected, counts = fitted(LOADERS[loader](), device_train_microbatch_size=size)
    found = fitted(LOADERS[loader](), callbacks=Once("after_backward"), device_train_microbatch_size=size)
    assert found[1] == counts
    assert torch.equal(found[0], expected)


def test_ctrl_c_in_a_notebook() -> None:
    expected, counts = fitted(LOADERS["shuffled"]())
    found = fitted(LOADERS["shuffled"](), callbacks=Once("before_backward", error=KeyboardInterrupt))
    assert found[1] == counts
    assert torch.equal(found[0], expected)


def test_optimizer_that_computes_gradients() -> None:
    def lbfgs_run(**more: Any):
        torch.manual_seed(0)
        model = Regression()
        trainer = trainer_of(model, DATA, optimizers=torch.optim.LBFGS(model.parameters(), lr=0.5), **more)
        for _ in range(2):
            try:
                trainer.fit()
                break
            except BoomError:
                pass
        return weights(trainer), int(trainer.state.timestamp.batch)

    expected = lbfgs_run()
    found = lbfgs_run(callbacks=Once("after_loss"))
    assert found[1] == expected[1] == NUM_BATCHES
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_failed_fetch_is_repeated(workers: int) -> None:
    expected, counts = fitted(DataLoader(Samples(), batch_size=2))
    # A copy of the data in a worker would fail again in every worker.
    data = Samples(bad=5 if workers == 0 else None)
    callback = [] if workers == 0 else [Once("after_dataloader")]
    found = fitted(DataLoader(data, batch_size=2, num_workers=workers), callbacks=callback)
    assert found[1] == counts
    assert torch.equal(found[0], expected)


def test_failed_generator_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    expected, counts = fitted(Unsized(DATA))
    found = fitted(fails_once(DATA))
    assert found[1] == counts
    assert torch.equal(found[0], expected)
    assert "Fetching the first 2 batches again" in caplog.text


def test_failing_single_pass_iterator() -> None:
    data = iter(fails_once(DATA))
    trainer = trainer_of(data=data)
    with (
        pytest.warns(ComposerWarning, match="batch 2 was raised with data that cannot be read"),
        pytest.raises(BoomError),
    ):
        trainer.fit()


def test_failing_transforms_and_counts() -> None:
    for argument in ("batch_transforms", "get_num_samples_in_batch", "microbatch_transforms"):
        calls = []

        def sometimes(batch, calls=calls, argument=argument):
            calls.append(1)
            if len(calls) == 3:
                raise BoomError
            return len(batch[0]) if argument.startswith("get") else batch

        expected = fitted(DATA)
        found = fitted(DataSpec(DATA, **{argument: sometimes}))
        assert found[1] == expected[1]
        assert torch.equal(found[0], expected[0])


class Edits(Algorithm):
    """Edits the batch in its containers, and puts it back in time, if all goes well."""

    def before_loss(self, state, logger):
        self.original = state.batch["parts"][1]
        state.batch["parts"][1] = self.original * 2

    def after_loss(self, state, logger):
        state.batch["parts"][1] = self.original


class InDict(Regression):
    def forward(self, batch):
        return super().forward(batch["parts"])

    def loss(self, outputs, batch):
        return super().loss(outputs, batch["parts"])


def test_edited_batch_is_restored() -> None:
    def edited(**more: Any):
        data = Unsized([{"parts": [x, y]} for x, y in DATA])
        torch.manual_seed(0)
        spec = DataSpec(data, get_num_samples_in_batch=lambda batch: len(batch["parts"][0]))
        trainer = trainer_of(InDict(), spec, algorithms=Edits(), **more)
        for _ in range(2):
            try:
                trainer.fit()
                break
            except BoomError:
                pass
        return weights(trainer)

    class FailsOnce(Callback):
        # After the method at BEFORE_LOSS, before it puts the batch back.
        failed = False

        def before_loss(self, state, logger):
            if state.timestamp.batch == 2 and not self.failed:
                self.failed = True
                raise BoomError

    assert torch.equal(edited(), edited(callbacks=FailsOnce()))


def test_label_smoothing_smooths_once() -> None:
    def smoothed(**more: Any):
        torch.manual_seed(0)
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))
        data = DataLoader(list(zip(x, torch.arange(12) % 3, strict=True)), batch_size=4)
        trainer = trainer_of(classifier(), data, algorithms=LabelSmoothing(0.3), **more)
        for _ in range(2):
            try:
                trainer.fit()
                break
            except BoomError:
                pass
        return weights(trainer)

    found = smoothed(callbacks=Once("before_loss", 1))
    assert torch.equal(found, smoothed())


def test_repeated_batches() -> None:
    torch.manual_seed(0)
    plain = trainer_of(data=DATA, overfit_batches=2, max_duration="3ep")
    torch.manual_seed(0)
    failing = trainer_of(data=DATA, overfit_batches=2, max_duration="3ep", callbacks=Once("after_loss", 3))
    plain.fit()
    with pytest.raises(BoomError):
        failing.fit()
    failing.fit()
    assert failing.state.timestamp.batch == plain.state.timestamp.batch == 6
    assert torch.equal(weights(plain), weights(failing))


def test_an_exception_while_the_optimizer_steps_warns() -> None:
    trainer = trainer_of(data=DATA)
    fails = [BoomError]

    def hook(*_: Any) -> None:
        if fails and trainer.state.timestamp.batch == 2:
            raise fails.pop()

    trainer.state.optimizers[0].register_step_post_hook(hook)
    with pytest.warns(ComposerWarning, match=r"batch 2 was raised while the optimizers stepped.*following batch"):  # noqa: SIM117
        with pytest.raises(BoomError):
            trainer.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit()
    assert trainer.state.timestamp.batch == NUM_BATCHES - 1


def test_the_gradient_scaler_starts_over() -> None:
    trainer = trainer_of(data=DATA, callbacks=Once("after_train_batch"))
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with pytest.raises(BoomError):
        trainer.fit()
    trainer.fit()  # not "unscale_() has already been called on this optimizer"
    assert trainer.state.timestamp.batch == NUM_BATCHES


def test_a_checkpoint_after_the_exception_has_the_batch_before_it(tmp_path) -> None:
    arguments: dict[str, Any] = {"seed": 1, "max_duration": "2ep"}

    def data():
        return DataLoader(Samples(), batch_size=2, shuffle=True)

    torch.manual_seed(0)
    straight = trainer_of(data=data(), **arguments)
    straight.fit()
    torch.manual_seed(0)
    failing = trainer_of(data=data(), callbacks=Once("after_loss", 6), **arguments)
    with pytest.raises(BoomError):
        failing.fit()
    path = failing.save_checkpoint(str(tmp_path / "failed.pt"))
    resumed = trainer_of(data=data(), load_path=path, **arguments)
    resumed.fit()
    assert torch.equal(weights(straight), weights(resumed))
    failing.fit()
    assert torch.equal(weights(straight), weights(failing))
