from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer import ComposerModel, Trainer
from composer.core import DataSpec, ensure_data_spec
from composer.warnings import ComposerWarning
from tests.common import Unsized
from tests.core.test_microbatches import Encoding, rows

Tensor = torch.Tensor


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 5


class TestTokens:
    IDS = torch.ones(2, 3)
    LABELS = torch.tensor([[1, 2, -100], [1, -100, -100]])

    def test_all_of_the_input_ids(self):
        for batch in ({"input_ids": self.IDS}, Encoding(input_ids=self.IDS)):
            assert DataSpec([]).get_num_tokens_in_batch(batch) == 6
            assert DataSpec([]).get_num_tokens_in_batch(batch, "loss_generating") == 6

    def test_labeled_token_count_stays_on_the_device(self):
        count = DataSpec([]).get_num_tokens_in_batch({"labels": self.LABELS}, "loss_generating")
        assert isinstance(count, Tensor)
        assert count == 3

    def test_tokens_from_sequence_length(self):
        dataset = TensorDataset(rows(4))
        dataset.max_seq_len = 16
        spec = DataSpec(DataLoader(dataset, batch_size=2))
        assert spec.get_num_tokens_in_batch((rows(2), rows(2))) == 32
        assert spec.get_num_tokens_in_batch({"x": rows(2)}) == 32

    def test_none(self):
        assert DataSpec([]).get_num_tokens_in_batch((rows(2),)) == 0

    def test_custom_function(self):
        assert DataSpec([], get_num_tokens_in_batch=len).get_num_tokens_in_batch("abc", "loss_generating") == 3
        spec = DataSpec([], get_num_tokens_in_batch=lambda batch: {"total": 5, "other": 1})
        assert spec.get_num_tokens_in_batch(None) == 5
        message = (
            "get_num_tokens_in_batch returned a mapping without 'loss_generating'; it has ['other', 'total']. Add "
            "that entry, or return a number."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            spec.get_num_tokens_in_batch(None, "loss_generating")


class TestSpec:
    def test_sizes(self):
        spec = DataSpec(DataLoader(TensorDataset(rows(7)), batch_size=2))
        assert (spec.num_samples, spec.num_tokens, spec.__length__, spec.__batch_size__) == (7, None, 4, 2)
        assert DataSpec(DataLoader(TensorDataset(rows(7))), num_samples=3, num_tokens=9).num_samples == 3

    def test_unsized(self):
        for loader in (Unsized([1]), DataLoader(TensorDataset(rows(7)), batch_size=2).__iter__(), iter([1])):
            spec = DataSpec(loader)
            assert (spec.num_samples, spec.__batch_size__) == (None, None)
        assert DataSpec(Unsized([1])).__length__ is DataSpec(iter([1])).__length__ is None

    def test_stream_length_does_not_imply_samples(self):
        assert DataSpec(DataLoader(Stream(), batch_size=2)).num_samples is None

        class Endless(IterableDataset):
            def __iter__(self):
                return iter(int, 1)

        assert DataSpec(DataLoader(Endless(), batch_size=2)).__length__ is None

    @pytest.mark.parametrize("given", [3, "data/train"], ids=str)
    def test_invalid_loaders(self, given):
        message = f"dataloader must be iterable, such as a torch DataLoader; got {given!r}."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            ensure_data_spec(given)

    def test_dataset_instead_of_loader(self):
        dataset = TensorDataset(rows(3))
        message = f"dataloader: got the dataset {dataset!r} itself; give DataLoader(dataset, batch_size=...) instead."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            ensure_data_spec(dataset)

    def test_accepted_types(self):
        loader = DataLoader(TensorDataset(rows(3)))
        spec = DataSpec(loader)
        assert ensure_data_spec(spec) is spec
        assert ensure_data_spec(loader).dataloader is loader
        spec = ensure_data_spec({"dataloader": loader, "num_tokens": 9, "batch_transforms": len})
        assert (spec.dataloader, spec.num_tokens, spec.batch_transforms) == (loader, 9, len)
        assert ensure_data_spec({"dataloader": loader, "microbatch_transforms": len}).microbatch_transforms is len
        with pytest.raises(TypeError, match="num_token"):
            ensure_data_spec({"dataloader": loader, "num_token": 9})

    def test_device_transforms_is_an_alias_of_batch_transforms(self):
        loader = DataLoader(TensorDataset(rows(3)))
        assert DataSpec(loader, device_transforms=len).batch_transforms is len
        with pytest.raises(ValueError, match="device_transforms is an old name of batch_transforms"):
            DataSpec(loader, batch_transforms=len, device_transforms=len)

    def test_legacy_module(self):
        from composer.core import data_spec

        assert data_spec.DataSpec is DataSpec
        assert data_spec.ensure_data_spec is ensure_data_spec


SHARED = {"x": torch.arange(4), "table": torch.arange(10), "inner": {"y": torch.arange(4)}}


@pytest.mark.filterwarnings("ignore:A tensor in the batch has 10 rows:composer.warnings.ComposerWarning")
@pytest.mark.parametrize(
    "batch",
    [
        SHARED,
        {"table": torch.arange(10), "inner": [torch.arange(4), torch.arange(4)]},
        {"x": ["a", "b", "c", "d"], "table": torch.arange(10)},
        {"x": ["a", "b", "c", "d"], "table": list("choices")},
    ],
    ids=["fields", "inner", "list", "lists"],
)
def test_what_has_the_number_of_samples_of_the_user_is_split(batch: dict[str, Any]) -> None:
    """The rest, here longer, belongs to the batch: each microbatch gets all of it."""
    spec = DataSpec([], get_num_samples_in_batch=lambda batch: len(batch["x"] if "x" in batch else batch["inner"][0]))
    parts = spec.split_batch(batch, 3)
    assert [spec.get_num_samples_in_batch(part) for part in parts] == [3, 1]
    assert all(len(part["table"]) == len(batch["table"]) for part in parts)
    assert str(spec.join_batches(parts)) == str(batch)
    assert not spec.__splits_itself__
    assert not copy.deepcopy(spec).__splits_itself__


def test_a_number_of_samples_that_nothing_has_does_not_change_how_a_batch_is_split() -> None:
    """As with sequence packing, where it is that of the documents; it is not asked for if the lengths agree."""
    calls: list[Any] = []
    spec = DataSpec([], get_num_samples_in_batch=lambda batch: calls.append(batch) or 2.5)
    assert [len(part["x"]) for part in spec.split_batch({"x": torch.arange(4), "y": torch.arange(4)}, 2)] == [2, 2]
    assert calls == []
    with pytest.warns(ComposerWarning, match="has 2 rows, but there are 4 samples"):
        assert [len(part["x"]) for part in spec.split_batch({"x": torch.arange(4), "y": torch.arange(2)}, 2)] == [2, 2]
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:A tensor in the batch has 10 rows:composer.warnings.ComposerWarning")
def test_microbatches_with_a_longer_shared_tensor_train_like_the_full_batch() -> None:
    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 3).double()

        def forward(self, batch: Any) -> Any:
            return self.layer(batch["x"]) @ batch["table"].mean(0)

        def loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.square().mean()

    def trained(size: int | None) -> Any:
        generator = torch.Generator().manual_seed(0)
        shapes = {"x": (4, 3), "table": (10, 3)}
        batch = {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()}
        model = Model()
        data = DataSpec([batch], get_num_samples_in_batch=lambda batch: len(batch["x"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        arguments: dict[str, Any] = {"optimizers": optimizer, "device_train_microbatch_size": size}
        Trainer(model=model, train_dataloader=data, max_duration="1ba", progress_bar=False, **arguments).fit()
        return model.layer.weight

    torch.testing.assert_close(trained(3), trained(None))
