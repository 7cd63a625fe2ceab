"""Blocks of steps: which of them are measured, and what happens in them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer import Trainer
from composer.diagnosis.block_recorder import BlockRecorder
from composer.models import ComposerClassifier
from composer.trials.block_steps import BLOCK_FILE, TOKEN_FILE, write
from composer.trials.blocks import Block


class Driver(threading.Thread):
    """Writes a token whenever a block is done, and keeps the blocks."""

    def __init__(self, folder: Path, steps: int, whole: bool) -> None:
        super().__init__(daemon=True)
        self._folder, self._token = folder, {"steps": steps, "whole": whole}
        self.blocks: list[Block] = []
        self.done = False

    def run(self) -> None:
        number = 0
        write(self._folder / TOKEN_FILE, {"block": 0, **self._token})
        while not self.done:
            path = self._folder / BLOCK_FILE
            found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"block": -1}
            if found.pop("block") == number:
                assert found["memory"] > 2**20
                assert found["cpu_seconds"] > 0
                parts = {name: tuple(found[name]) for name in ("seconds", "kinds", "skipped")}
                self.blocks.append(Block(**parts, total=found["total"]))
                number += 1
                write(self._folder / TOKEN_FILE, {"block": number, **self._token})
            time.sleep(0.001)


def given(**arguments: Any) -> dict[str, Any]:
    """Arguments of a trainer."""
    model = ComposerClassifier(nn.Linear(2, 2), num_classes=2)
    fixed = {"model": model, "optimizers": SGD(model.parameters(), 0.1), "progress_bar": False, "callbacks": []}
    return {**fixed, "train_dataloader": rows(), **arguments}


def train(folder: Path, data: Any, steps: int, whole: bool, duration: str = "8ep", **arguments: Any) -> list[Block]:
    """Train in blocks, and return them."""
    driver = Driver(folder, steps, whole)
    recorder, program = BlockRecorder(folder), given(train_dataloader=data, **arguments)
    trainer = Trainer(**{**recorder.init(program, program), "max_duration": duration})
    recorder.begin(trainer)
    driver.start()
    try:
        trainer.fit()
    finally:
        driver.done = True
        driver.join()
        trainer.close()
    return driver.blocks


def rows(number: int = 12, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(number, 2), torch.zeros(number, dtype=torch.long)), 2, **arguments)


def test_blocks_of_whole_epochs_have_each_end_of_an_epoch_once(tmp_path: Path) -> None:
    blocks = train(tmp_path, rows(), steps=6, whole=True)
    assert len(blocks) == 6  # 48 steps, 7 a block
    for block in blocks:
        assert len(block.seconds) == 6
        assert sorted(block.kinds) == ["", "", "", "", "", "epoch"]
        assert len(block.skipped) == 1
        assert 0 < sum(block.seconds) < block.total
    # The pauses move through the epoch.
    assert [block.kinds.index("epoch") for block in blocks[1:]] == [4, 3, 2, 1, 0]


def test_steps_whose_batches_may_have_been_loaded_in_the_pause_are_not_measured(tmp_path: Path) -> None:
    data = rows(32, num_workers=2, prefetch_factor=3, persistent_workers=True)
    blocks = train(tmp_path, data, steps=3, whole=False, duration="3ep")
    assert {len(block.skipped) for block in blocks} == {7}
    assert {len(block.seconds) for block in blocks} == {4}  # workers deliver in bursts: a multiple of their number


def test_evaluations_and_checkpoints_are_kinds_of_steps(tmp_path: Path) -> None:
    arguments = {"eval_dataloader": rows(2), "eval_interval": "2ba"}
    saving = {"save_folder": str(tmp_path / "out"), "save_interval": "3ba"}
    blocks = train(tmp_path, rows(), steps=6, whole=True, **arguments, **saving)
    for block in blocks:
        assert sorted(block.kinds) == ["", "epoch", "evaluation", "evaluation", "evaluation+saving", "saving"]


class Lines(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((torch.ones(2), 0) for _ in range(12))


def test_an_epoch_of_unknown_length_ends_in_the_step_that_finds_its_end(tmp_path: Path) -> None:
    blocks = train(tmp_path, DataLoader(Lines(), 2), steps=6, whole=False)
    for block in blocks:
        assert sorted(block.kinds) == ["", "", "", "", "", "epoch"]


def test_only_the_trainer_that_is_meant_waits(tmp_path: Path) -> None:
    program = given(max_duration="1ep")
    arguments = BlockRecorder(tmp_path).init(program, program)
    Trainer(**{**arguments, "max_duration": "1ep"}).fit()  # would wait for ever
    assert not (tmp_path / BLOCK_FILE).exists()


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write(path, {"values": [0] * 1000})
    seen: list[int] = []

    def read() -> None:
        while len(seen) < 200:
            seen.append(len(json.loads(path.read_text())["values"]))

    thread = threading.Thread(target=read)
    thread.start()
    while thread.is_alive():
        write(path, {"values": [0] * 1000})
    assert set(seen) == {1000}


pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
