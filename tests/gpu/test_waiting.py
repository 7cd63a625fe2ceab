"""SyncFree for each method, on the pretended device: what is read on the host may be read, what lies there may not.

On a GPU the driver itself is the judge, in test_beside.py.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from composer import devices
from composer.warnings import ComposerWarning
from tests import on_device
from tests.algorithms.cases import Case, all_cases
from tests.common import Received
from tests.gpu.runs import run_of
from tests.gpu.waits import WAITS
from tests.pretend import DEVICE, PretendDevice, Pretended
from tests.trainer.test_sync_free import Step

pytestmark = pytest.mark.skipif(on_device.device().type != "cpu", reason="test_beside.py asks the driver")


def waits_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """In which steps of three epochs the host waits, and by what; the first two may set something up."""
    monkeypatch.setitem(devices._CLASSES, DEVICE.type, PretendDevice)
    found: list[tuple[int, str]] = []
    now: list[int | None] = [None]
    with Pretended() as pretended, warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)

        def tell(step: int | None) -> None:
            found.extend((now[0], what) for what in pretended.waits if now[0] is not None)
            pretended.waits.clear()
            now[0] = step

        model = case.model()
        trainer, _ = run_of(
            DEVICE.type,
            model,
            case.batches(),
            optimizers=case.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            algorithms=case.make(),
            callbacks=Step(tell),
            loggers=Received(50),
            max_duration="3ep",
            precision="fp32",
        )
        trainer.fit()
        trainer.close()
    return [(step, what) for step, what in found if step > 2]


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_SyncFree_with_a_method(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = waits_of(case, monkeypatch)
    assert bool(found) == (case.name in WAITS), found


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x[0] > 0),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x.to("cpu"),
    ],
)
def test_the_device_sees_every_kind_of_read(read) -> None:
    with Pretended() as pretended:
        x, here = torch.ones(3).to(DEVICE), torch.ones(3)
        assert not pretended.waits
        read(here)
        torch.where(x > 0, x, 0.0).sum().square()
        x[torch.tensor([0, 1])]
        x.to("cpu", non_blocking=True)
        assert not pretended.waits
        read(x)
        assert pretended.waits


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.nn.functional.linear(torch.ones(1, 3), x[None]),
        lambda x: torch.equal(x, torch.ones(3)),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.randn(3, device=x.device, generator=torch.Generator()),
        lambda x: torch.nn.Linear(3, 1)(x),
    ],
)
def test_the_device_refuses_to_mix(mix) -> None:
    with Pretended():
        x = torch.ones(3).to(DEVICE)
        with pytest.raises(RuntimeError, match=r"at least two devices|device type for generator"):
            mix(x)
        with pytest.raises(TypeError, match="to numpy"):
            x.numpy()
        assert (x * 2 + 1).sum().cpu().item() == 9
        assert torch.ones(3).add_(x.cpu()).device.type == "cpu"
