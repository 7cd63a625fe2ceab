"""The model of CUDA streams finds races, and reports no false ones."""

from __future__ import annotations

import pytest
import torch

from tests.streams import Event, FakeCuda, RaceError, side_stream


def on_device(size: int = 2) -> torch.Tensor:
    return torch.ones(size).to("cuda", non_blocking=True)


def test_one_stream_has_no_races() -> None:
    with FakeCuda():
        x = on_device()
        y = (x + 1).mul_(2)
        assert (y.is_cuda, y.is_cpu, y.device.type) == (True, False, "cuda")
        assert y.sum().item() == 8


def test_reading_what_another_stream_writes_is_a_race() -> None:
    with FakeCuda(), pytest.raises(RaceError, match="'default' uses what stream 'side 1' may not have finished"):
        with side_stream():
            x = on_device()
        x + 1


def test_writing_what_another_stream_reads_is_a_race() -> None:
    with FakeCuda() as device, pytest.raises(RaceError):
        x = on_device()
        with side_stream() as side:
            side.wait_stream(device.streams[0])
            x + 1
        x.add_(1)


@pytest.mark.parametrize("how", ["event", "stream", "synchronize", "event of the host"])
def test_synchronization_prevents_the_race(how: str) -> None:
    with FakeCuda() as device:
        with side_stream() as side:
            x = on_device()
            done = side.record_event(Event())
        if how == "event":
            device.current[-1].wait_event(done)
        elif how == "stream":
            device.current[-1].wait_stream(side)
        elif how == "synchronize":
            torch.cuda.synchronize()
        else:
            done.synchronize()
        assert (x + 1).sum().item() == 4
        x.record_stream(device.current[-1])
        del x


def test_freeing_what_another_stream_uses_is_a_race_until_it_is_recorded() -> None:
    def use(recorded: bool) -> None:
        with FakeCuda() as device:
            with side_stream() as side:
                x = on_device()
            device.current[-1].wait_stream(side)
            x + 1
            if recorded:
                x.record_stream(device.current[-1])
            del x

    use(recorded=True)
    with pytest.raises(RaceError, match="is freed while stream 'default' may be using it"):
        use(recorded=False)


def to_pinned(device_tensor: torch.Tensor, **options: bool) -> torch.Tensor:
    host = torch.empty_like(device_tensor, device="cpu", pin_memory=True)
    assert host.is_pinned()
    assert host.device.type == "cpu"
    return host.copy_(device_tensor, **options)


@pytest.mark.parametrize("how", ["copy_", "to"])
@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x + 1, lambda x: x.tolist()])
def test_reading_pinned_memory_before_a_copy_has_arrived_is_a_race(how, read) -> None:
    def run(non_blocking: bool, wait: bool) -> None:
        with FakeCuda():
            x = on_device()
            copy = to_pinned(x, non_blocking=non_blocking) if how == "copy_" else x.to("cpu", non_blocking=non_blocking)
            if wait:
                torch.cuda.synchronize()
            read(copy)

    run(non_blocking=False, wait=False)
    run(non_blocking=True, wait=True)
    with pytest.raises(RaceError, match="stream 'host' uses what stream 'default' may not have finished"):
        run(non_blocking=True, wait=False)


def test_writing_pinned_memory_that_is_being_copied_is_a_race() -> None:
    for wait in (True, False):
        with FakeCuda():
            host = torch.ones(2).to("cuda").to("cpu", non_blocking=True)
            torch.cuda.synchronize()
            host.to("cuda", non_blocking=True)
            if wait:
                torch.cuda.synchronize()
                host.zero_()
            else:
                with pytest.raises(RaceError):
                    host.zero_()
