"""Which type of batch reaches the model, the loss, hooks and metrics: that of the loader, with lists as tuples."""

from __future__ import annotations

from collections import defaultdict, namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Callback, DataSpec, Evaluator
from composer.algorithms import SelectiveBackprop
from composer.datasets import DevicePrefetcher, TensorLoader
from composer.models import ComposerClassifier
from tests.common import trainer_of

Pair = namedtuple("Pair", ["x", "y"])

OF_BATCH = {"after_dataloader", "batch_start", "before_train_batch", "after_train_batch", "batch_end"}
OF_BATCH |= {"eval_batch_start", "predict_batch_start", "predict_before_forward", "predict_batch_end", "predict"}
OF_MICROBATCH = {"before_forward", "after_forward", "before_loss", "after_loss", "before_backward", "after_backward"}
OF_MICROBATCH |= {"eval_before_forward", "eval_after_forward", "eval_batch_end", "forward", "loss", "eval_forward"}
OF_MICROBATCH |= {"update_metric"}


class Model(ComposerClassifier):
    def __init__(self, seen):
        super().__init__(torch.nn.Linear(3, 2), num_classes=2)
        self.seen = seen
        self.predicts = False

    def note(self, name, batch):
        self.seen["predict" if self.predicts else name].add(type(batch))

    def parts(self, batch):
        return (batch["x"], batch["y"]) if isinstance(batch, dict) else tuple(batch)

    def forward(self, batch):
        self.note("forward", batch)
        return super().forward(self.parts(batch))

    def loss(self, outputs, batch, reduction="mean"):
        self.note("loss", batch)
        return super().loss(outputs, self.parts(batch), reduction=reduction)

    def eval_forward(self, batch, outputs=None):
        self.note("eval_forward", batch)
        self.predicts = outputs is None
        outputs = self.module(self.parts(batch)[0])
        self.predicts = False
        return outputs

    def update_metric(self, batch, outputs, metric):
        self.note("update_metric", batch)
        super().update_metric(self.parts(batch), outputs, metric)


class Hooks(Callback):
    def __init__(self, seen):
        self.seen = seen

    def run_event(self, event, state, logger):
        if str(event) in OF_BATCH | OF_MICROBATCH:
            self.seen[str(event)].add(type(state.batch))
        state.model.predicts = str(event).startswith("predict_before")


class Method(Algorithm):
    """As a user writes it; it sees what callbacks see."""

    def __init__(self, seen):
        self.seen = seen

    def match(self, event, state):
        return str(event) in OF_BATCH | OF_MICROBATCH

    def apply(self, event, state, logger):
        self.seen[str(event)].add(type(state.batch))


DATA = TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)


def named(samples):
    x, y = torch.utils.data.default_collate(samples)
    return Pair(x, y)


LOADERS = {
    "torch": (lambda: DataLoader(DATA, batch_size=4), list),
    "workers": (lambda: DataLoader(DATA, batch_size=4, num_workers=1), list),
    "prefetcher": (lambda: DevicePrefetcher(DataLoader(DATA, batch_size=4), device="cpu"), list),
    "tensor loader": (lambda: TensorLoader(DATA.tensors, 4, device="cpu"), tuple),
    "own collation": (
        lambda: DataLoader(DATA, batch_size=4, collate_fn=lambda s: tuple(torch.utils.data.default_collate(s))),
        tuple,
    ),
    "mapping": (
        lambda: DataLoader([{"x": x, "y": y} for x, y in DATA], batch_size=4),
        dict,
    ),
    "named tuple": (lambda: DataLoader(DATA, batch_size=4, collate_fn=named), Pair),
    "list of batches": (lambda: [list(part) for part in DataLoader(DATA, batch_size=4)], list),
}


def classes(loader, **arguments):
    seen = defaultdict(set)
    evaluator = Evaluator(
        label="eval", dataloader=loader(), device_eval_microbatch_size=arguments.pop("eval_size", None)
    )
    trainer = trainer_of(
        model=Model(seen),
        data=loader(),
        eval_dataloader=evaluator,
        callbacks=Hooks(seen),
        max_duration="1ep",
        **{"algorithms": Method(seen), **arguments},
    )
    trainer.fit()
    trainer.predict(loader())
    return seen


@pytest.mark.parametrize("size", [None, 4, 3, "auto"])
@pytest.mark.parametrize("name", LOADERS)
def test_batch_classes_of_every_loader(name, size):
    loader, given = LOADERS[name]
    if name == "workers" and size != 3:
        pytest.skip("one size is enough where processes have to start")
    seen = classes(loader, device_train_microbatch_size=size, eval_size=size)
    in_model = tuple if given is list else given
    assert {key: found for key, found in seen.items() if key in OF_BATCH} == {
        key: {given} for key in OF_BATCH & seen.keys()
    }
    assert {key: found for key, found in seen.items() if key in OF_MICROBATCH} == {
        key: {in_model} for key in OF_MICROBATCH
    }
    assert seen.keys() >= OF_MICROBATCH | OF_BATCH - {"predict"}


def test_when_forward_and_loss_are_one_graph():
    seen = defaultdict(set)
    trainer = trainer_of(
        model=Model(seen), data=LOADERS["torch"][0](), max_duration="1ep", compile_config={"backend": "eager"}
    )
    trainer.fit()
    assert seen["loss"] == {tuple}


def test_if_an_algorithm_selects_samples():
    seen = classes(
        LOADERS["torch"][0],
        algorithms=SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0),
        device_train_microbatch_size=None,
    )
    assert seen["loss"] == {tuple}


def test_lists_of_samples_stay_lists():
    seen = set()

    class Words(ComposerClassifier):
        def __init__(self):
            super().__init__(torch.nn.Linear(1, 2), num_classes=2)

        def forward(self, batch):
            seen.add((type(batch), *batch))
            return self.module(torch.tensor([[float(len(word))] for word in batch]))

        def loss(self, outputs, batch):
            return outputs.mean()

        def get_metrics(self, is_train):
            return {}

    trainer = trainer_of(
        model=Words(),
        data=DataLoader(["a", "b", "c"], batch_size=3),
        max_duration="1ep",
        device_train_microbatch_size=2,
    )
    trainer.fit()
    assert seen == {(list, "a", "b"), (list, "c")}
    assert trainer.state.timestamp.sample == 3


@pytest.mark.parametrize("size", [None, 2, 4, 9])
def test_custom_split_is_called_for_every_batch(size):
    asked, seen = [], set()

    class OfMapping(ComposerClassifier):
        def loss(self, outputs, batch):
            seen.add(type(batch))
            return super().loss(outputs, batch)

    def split(batch, microbatch_size):
        asked.append(microbatch_size)
        return [Pair(*part) for part in zip(*(tensor.split(microbatch_size) for tensor in batch), strict=True)]

    spec = DataSpec(DataLoader(DATA, batch_size=4), split_batch=split)
    trainer = trainer_of(
        model=OfMapping(torch.nn.Linear(3, 2), num_classes=2),
        data=spec,
        eval_dataloader=Evaluator(label="e", dataloader=spec, device_eval_microbatch_size=size),
        max_duration="1ep",
        device_train_microbatch_size=size,
    )
    trainer.fit()
    assert asked == [size or 4] * 4
    assert seen == {Pair}
