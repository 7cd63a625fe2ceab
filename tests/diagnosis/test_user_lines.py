"""Which frames are the user's code."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import composer
from composer import Callback, Trainer
from composer.diagnosis import user_lines
from composer.diagnosis.user_lines import in_user_code, in_user_handler, is_user_file, user_line
from composer.models import ComposerClassifier

GENERATED = f"{user_lines._GENERATED}/ab/cabc.py"


@pytest.mark.parametrize(
    "path", [composer.__file__, torch.__file__, json.__file__, "<string>", "<frozen runpy>", GENERATED]
)
def test_libraries_are_not_the_users(path: str) -> None:
    assert not is_user_file(path)


@pytest.mark.parametrize("path", ["train.py", "project/data.py", __file__])
def test_programs_are(path: str) -> None:
    assert is_user_file(path)


def test_a_function_of_a_library_has_the_line_that_calls_it() -> None:
    found: list[Any] = []

    class Rows(json.JSONEncoder):
        def default(self, o: object) -> Any:
            return json.loads("1", object_hook=None, parse_int=lambda _: found.append(user_line(sys._getframe(1))) or 1)

    json.dumps(object(), cls=Rows)
    assert found[0][0] == __file__
    assert found[0][2].endswith("Rows.default")


class Looks(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        frame = sys._getframe()
        self.seen = user_line(frame), in_user_handler(frame), user_line(frame.f_back), in_user_handler(frame.f_back)


def test_handlers_of_a_run() -> None:
    looks = Looks()
    model = ComposerClassifier(nn.Linear(2, 2), num_classes=2)
    rows = TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    with Trainer(
        model=model,
        train_dataloader=DataLoader(rows, 4),
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        max_duration="1ba",
        callbacks=[looks],
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    line, handles, outside, handles_outside = looks.seen
    assert line is not None and line[0] == __file__ and line[2] == "Looks.batch_end"
    assert handles
    # This test calls fit, but the loop does not run within its code.
    assert (outside, handles_outside) == (None, False)
    assert not in_user_handler(sys._getframe())


def test_threads_of_the_program() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(in_user_code(sys._getframe())))
    thread.start()
    thread.join()
    assert found == [True]
    assert not in_user_code(None)
