"""The loaders that are compared yield the same data."""

from __future__ import annotations

import torch

from benchmarks import data_loading


def test_each_has_every_sample_once() -> None:
    for name, start_epoch_iterator in data_loading.subjects(512, "cpu").items():
        batches = list(start_epoch_iterator())
        assert torch.equal(torch.cat([y for _, y in batches]).sort().values, torch.arange(512)), name


def test_report() -> None:
    found = data_loading.measure(rounds=1, samples=512)
    assert found.rows[0][0] == "DataLoader"
    assert found.rows[0][4] == 1
    assert set(found.samples) == {row[0] for row in found.rows}
    assert all(len(values) == 1 for values in found.samples.values())
