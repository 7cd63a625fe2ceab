"""Training programs that tests run as trials, and what they leave."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import psutil

from composer.trials import ForkServer, Record, Target, Trial
from composer.trials.processes import Running

PROBE = "composer.trials.probe:Probe"
_numbers = itertools.count()

# What each program begins with: a trainer is made by `trainer()`.
START = """
import os, signal, subprocess, sys, threading, time
import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset

def loader(**arguments):
    return DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(2, (8,))), **{"batch_size": 4, **arguments})

def trainer(**arguments):
    given = {"train_dataloader": loader(), "max_duration": "2ba", "progress_bar": True, **arguments}
    return Trainer(model=ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2), **given)

class At(Callback):
    def __init__(self, act, event="batch_end"):
        setattr(self, event, lambda state, logger: act())
"""
RANK = "int(os.environ['RANK'])"


def script(folder: Path, text: str, name: str = "train.py") -> Target:
    """Write a program, and return it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"{START}\n{text}\n")
    return Target.from_command([str(path)])


def run(folder: Path, target: Target, server: ForkServer | None, probe: str = PROBE, **arguments: Any) -> Record:
    """Run a trial of a program."""
    arguments = {"time_limit": 60.0, **arguments}
    trial = Trial("one", target, probe, **arguments)
    where = folder / f"trial-{next(_numbers)}"
    where.mkdir()
    return Running(trial, where, server).wait(120)


def processes_with(marker: str) -> list[str]:
    """Return the command lines of the running processes whose environment or command line has a marker."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            told = " ".join([*process.cmdline(), *process.environ().values()])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if marker in told and process.pid != psutil.Process().pid:
            found.append(" ".join(process.cmdline()))
    return found


def gone(marker: str, seconds: float = 5.0) -> bool:
    """Return whether no process has a marker, now or in some seconds."""
    end = time.monotonic() + seconds
    while found := processes_with(marker):
        if time.monotonic() > end:
            raise AssertionError(f"still running: {found}")
        time.sleep(0.1)
    return True
