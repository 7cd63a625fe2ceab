"""Assignments: parsing, and what they change in the arguments of a trainer and of fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from composer import DataSpec, Evaluator
from composer.algorithms import EMA, LabelSmoothing
from composer.callbacks import LRMonitor
from composer.core import Time
from composer.trials.assignments import Assignment, apply, apply_to_fit, parse_value

DATA = TensorDataset(torch.arange(10.0))
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


def changed(text: str, **arguments: Any) -> Any:
    """Return the value of the first argument after an assignment."""
    return next(iter(apply([Assignment.parse(text)], arguments).values()))


@given(LITERALS)
def test_literals_are_read_as_written(value: Any) -> None:
    assert parse_value(repr(value)) == value
    assert Assignment.parse(f"a.b = {value!r}") == Assignment("a.b", "=", value)


@given(st.text(alphabet=st.characters(blacklist_characters="()"), min_size=1))
def test_any_text_without_calls_is_a_value(text: str) -> None:
    parse_value(text)


@pytest.mark.parametrize(
    "text", ["2ep", "amp_bf16", "cuda:0", "s3://bucket/{run_name}", "a+b", r"C:\data", "1e", "x.y", "{'a': b}"]
)
def test_other_words_are_strings(text: str) -> None:
    assert parse_value(text) == text


def test_objects_may_be_nested() -> None:
    assert isinstance(parse_value("[EMA(half_life=Time(3, 'ba')), 'mixup']")[0], EMA)
    found = parse_value("{'one': (Time(2, 'ep'), -1)}")
    assert found == {"one": (Time.from_epoch(2), -1)}
    assert parse_value("torch.nn.Identity()").__class__ is torch.nn.Identity


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("precision", "has the form NAME=VALUE, NAME\\+=VALUE or NAME-=VALUE, such as optimizers.lr=0.001; got"),
        ("=3", "has the form"),
        ("precision=", "has no value: write precision=None"),
        ("precision==fp32", "has no value"),
        ("algorithms+=EMAA()", "unknown class 'EMAA'. Did you mean 'EMA'"),
        ("algorithms+=EMA(half_lief='3ba')", "cannot be created: .*half_lief"),
        ("algorithms+=EMA(half_life=x)", "x is not a literal"),
        ("algorithms+=EMA(**{})", "write the arguments by name"),
        ("run_name=mine(2)", "Write a string that has parentheses in quotes"),
        ("model={**a()}", "is not a literal"),
    ],
)
def test_texts_that_are_no_assignments(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Assignment.parse(text)


def test_lists() -> None:
    assert [type(one) for one in changed("algorithms+=EMA()", algorithms=LabelSmoothing())] == [LabelSmoothing, EMA]
    assert changed("callbacks+=['lr_monitor', 'speed_monitor']", callbacks=None) == ["lr_monitor", "speed_monitor"]
    given_ = [LabelSmoothing(), "label_smoothing", EMA()]
    assert changed("algorithms-=LabelSmoothing", algorithms=given_) == given_[2:]
    assert changed("algorithms-=LabelSmoothing()", algorithms="label_smoothing") == []
    assert changed("algorithms-=label_smoothing", algorithms=given_) == given_[2:]
    assert changed("callbacks-=LRMonitor", callbacks=[LRMonitor()]) == []
    assert len(given_) == 3
    assert changed("algorithms.0.smoothing=0.3", algorithms=[LabelSmoothing()])[0].smoothing == 0.3


def test_optimizers() -> None:
    first = torch.optim.SGD([{"params": [torch.ones(1)], "lr": 0.5}, {"params": [torch.ones(1)]}], lr=0.1)
    second = torch.optim.Adam([torch.ones(1)], lr=torch.tensor(0.1), capturable=True)
    torch.optim.lr_scheduler.ConstantLR(first)
    one, two = changed("optimizers.lr=0.3", optimizers=[first, second])
    assert (one, two) == (first, second)
    assert [group["lr"] for group in first.param_groups] == [0.3, 0.3]
    assert [group["initial_lr"] for group in first.param_groups] == [0.3, 0.3]
    assert isinstance(second.param_groups[0]["lr"], torch.Tensor)
    assert float(second.param_groups[0]["lr"]) == pytest.approx(0.3)
    changed("optimizers.0.momentum=0.9", optimizers=[first, second])
    assert first.param_groups[1]["momentum"] == 0.9
    with pytest.raises(ValueError, match=r"optimizers \(SGD\) has no hyperparameter 'ler'. Did you mean 'lr'"):
        changed("optimizers.ler=1", optimizers=first)
    with pytest.raises(ValueError, match="no entry with index 2: it has 2"):
        changed("optimizers.2.lr=1", optimizers=[first, second])
    with pytest.raises(
        ValueError, match=r"optimizers is None, so optimizers.lr cannot be set; assign a value to optim"
    ):
        changed("optimizers.lr=1", optimizers=None)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Custom(DataLoader):
    pass


LOADERS = {
    "sized": DataLoader(DATA, batch_size=5, drop_last=True, num_workers=2, timeout=3.0),
    "shuffled": DataLoader(DATA, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "iterable": DataLoader(Numbers(), batch_size=5),
    "unbatched": DataLoader(DATA, batch_size=None),
    "batch_sampler": DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 3, False)),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_with_another_number_of_workers_has_the_same_batches(name: str) -> None:
    loader = LOADERS[name]
    new = changed("train_dataloader.num_workers=0", train_dataloader=loader)
    assert (new is not loader, new.num_workers, new.dataset) == (True, 0, loader.dataset)
    state = None if loader.generator is None else loader.generator.get_state()
    without = [str(batch) for batch in new]
    if loader.generator is not None:
        loader.generator.set_state(state)
    loader.timeout = 60.0 if loader.num_workers else 0.0
    assert without == [str(batch) for batch in loader]
    assert changed("train_dataloader.num_workers=2", train_dataloader=loader).num_workers == 2


def test_other_arguments_of_loaders() -> None:
    new = changed("train_dataloader.batch_size=2", train_dataloader=LOADERS["sized"])
    assert (new.batch_size, new.drop_last, new.timeout, new.num_workers) == (2, True, LOADERS["sized"].timeout, 2)
    assert changed("train_dataloader.drop_last=False", train_dataloader=LOADERS["sized"]).drop_last is False
    spec = DataSpec(LOADERS["sized"])
    assert changed("train_dataloader.batch_size=2", train_dataloader=spec).dataloader.batch_size == 2
    evaluator = Evaluator(label="eval", dataloader=LOADERS["sized"])
    assert changed("eval_dataloader.batch_size=2", eval_dataloader=evaluator).dataloader.dataloader.batch_size == 2
    for name, what in {"unbatched": "the dataset", "batch_sampler": "a custom batch sampler"}.items():
        with pytest.raises(
            ValueError, match=f"train_dataloader.batch_size cannot be changed: {what} makes the batches"
        ):
            changed("train_dataloader.batch_size=2", train_dataloader=LOADERS[name])
    with pytest.raises(ValueError, match="'shuffle' that can be changed"):
        changed("train_dataloader.shuffle=True", train_dataloader=LOADERS["sized"])
    with pytest.raises(ValueError, match=r"Custom is a custom loader, which cannot be copied. Let the program take it"):
        changed("train_dataloader.num_workers=1", train_dataloader=Custom(DATA))


def test_mappings_and_attributes() -> None:
    config = {"fsdp": {"shard": 2}}
    assert changed("parallelism_config.fsdp.shard=4", parallelism_config=config) == {"fsdp": {"shard": 4}}
    assert changed("parallelism_config.tp=1", parallelism_config=config) == {**config, "tp": 1}
    assert config == {"fsdp": {"shard": 2}}
    model = torch.nn.ModuleDict({"drop": torch.nn.Dropout(0.1)})
    assert changed("model.drop.p=0.5", model=model)["drop"].p == 0.5


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("precison=fp32", "Trainer has no argument 'precison'. Did you mean 'precision'"),
        ("max_duration+=1ep", r"max_duration is not a list, to which \+= applies; assign to it with '='"),
        ("optimizers.lr+=1", "optimizers.lr cannot be added to; assign to it with '='"),
        ("algorithms-=EMAA", "algorithms has no 'EMAA': it has EMA. Did you mean 'EMA'"),
        ("algorithms.0.smoothin=1", "has no attribute 'smoothin'"),
        ("algorithms.0.match=1", "has no attribute 'match'"),
        ("max_duration.value=3", "cannot be set: .* Assign an object to max_duration instead"),
    ],
)
def test_changes_that_are_not_possible(text: str, match: str) -> None:
    arguments = {"precision": None, "max_duration": Time.from_epoch(1), "optimizers": None, "algorithms": [EMA()]}
    with pytest.raises(ValueError, match=match):
        apply([Assignment.parse(text)], arguments)


def test_what_the_program_passes_to_fit_is_changed_there() -> None:
    workers = [Assignment.parse("train_dataloader.num_workers=2")]
    assert apply(workers, {"train_dataloader": None}) == {"train_dataloader": None}
    found = apply_to_fit(workers, {"train_dataloader": LOADERS["iterable"]}, {"train_dataloader"})
    assert found["train_dataloader"].num_workers == 2
    with pytest.raises(ValueError, match="the program passes train_dataloader neither to the Trainer nor to fit"):
        apply_to_fit(workers, {"train_dataloader": None}, {"train_dataloader"})
    assert apply_to_fit(workers, {"train_dataloader": None}) == {"train_dataloader": None}

    for text, passed, expected in [
        ("precision=fp32", {"precision": "amp_bf16"}, {"precision": "fp32"}),
        ("precision=fp32", {"precision": None}, {"precision": None}),
        ("device_train_microbatch_size=2", {"device_train_microbatch_size": 8}, {"device_train_microbatch_size": 2}),
        ("max_duration=2ba", {"duration": "3ep"}, {"duration": None}),
        ("max_duration=2ba", {"duration": None}, {"duration": None}),
        ("save_folder=x", {"duration": None}, {"duration": None}),
        ("schedulers=None", {"schedulers": [1]}, {"schedulers": None}),
    ]:
        assert apply_to_fit([Assignment.parse(text)], passed) == expected
    subset = [Assignment.parse("train_subset_num_batches=3")]
    passed = {"train_dataloader": [1], "train_subset_num_batches": None}
    assert apply_to_fit(subset, passed)["train_subset_num_batches"] == 3
    assert apply_to_fit(subset, {**passed, "train_dataloader": None})["train_subset_num_batches"] is None
