"""Batches on their way to a device."""

from __future__ import annotations

import pytest
import torch

from composer.core.transfer import Sent, send


def test_on_the_cpu_the_batch_is_there_at_once() -> None:
    batch = [torch.ones(2), "text"]
    sent = send(batch, torch.device("cpu"), lambda batch: [*batch, 1])
    assert sent.receive()[0] is batch[0]
    assert sent.receive()[1:] == ["text", 1]
    assert Sent(batch, torch.device("cpu")).receive() is batch


@pytest.mark.gpu
def test_copies_are_complete_when_they_are_received() -> None:
    device = torch.device("cuda", 0)
    hosts = [torch.full((4096, 1024), float(i)).pin_memory() for i in range(8)]
    sent = [send(host, device, lambda host: host.to(device, non_blocking=True)) for host in hosts]
    sums = [each.receive().sum(dtype=torch.float64) for each in sent]
    assert [total.item() for total in sums] == [4096 * 1024.0 * i for i in range(8)]
