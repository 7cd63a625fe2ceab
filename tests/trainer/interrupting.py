"""Send signals to scripts that train; called in a process of ``tests.forking``."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from typing import Any

import torch

from composer import Callback, Trainer
from tests import forking
from tests.common import At, Regression, regression_data

MODES = ("eval", "predict")


def interrupt_all(root: str, cases: dict[str, Any]) -> dict[str, int]:
    """Send the signal of each case in the sixth batch of a run; return the statuses of the processes.

    Args:
        root: Folder of what they write, a file for each.
        cases: By name, the name of a signal and arguments of the run, or the name of another method to call than fit.
    """
    _train([], progress_bar=False)  # imports here what is imported when it is used, so that no child needs to
    forking.share()
    statuses = {}
    for case, (name, arguments) in cases.items():
        child = os.fork()
        if child == 0:
            _end_as_a_script(Path(root, f"{case}.txt"), name, arguments)
        statuses[case] = os.waitpid(child, 0)[1]
    return statuses


def _end_as_a_script(path: Path, name: str, arguments: dict[str, Any]) -> None:
    """Train; an exception of a signal goes up to the interpreter, which ends this process as any program."""
    written = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.dup2(written, 1)
    os.dup2(written, 2)

    def send(state: Any) -> None:
        if state.timestamp.batch == 5:
            os.kill(os.getpid(), signal.Signals[name])

    def send_at_once(state: Any) -> None:
        os.kill(os.getpid(), signal.Signals[name])

    try:
        _train([At("batch_start", send), *(At(f"{mode}_batch_start", send_at_once) for mode in MODES)], **arguments)
    except Exception:  # which the parent's loop would catch
        traceback.print_exc()
    os._exit(99)


def _train(callbacks: list[Callback], call: str = "fit", **arguments: Any) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        model=model,
        train_dataloader=regression_data(),
        optimizers=optimizer,
        max_duration="3ep",
        run_name="night",
        callbacks=callbacks,
        **arguments,
    )
    getattr(trainer, call)(*([] if call == "fit" else [regression_data()]))
