from __future__ import annotations

import torch

from composer import Time
from composer.algorithms import MixUp
from composer.utils import extract_hparams


def test_local_variables_become_hyperparameters() -> None:
    class Script:
        def run(self, lr: float, duration: Time, nothing: object = None) -> dict[str, object]:
            _private, kind = 1, torch.nn.Linear
            methods = [MixUp(alpha=0.3)]
            return extract_hparams(locals())

    found = Script().run(0.1, Time(3, "ep"))
    assert {"lr": 0.1, "duration": "3ep"}.items() <= found.items()
    assert set(found) == {"lr", "duration", "methods"}
    assert found["methods"][0]["alpha"] == 0.3
