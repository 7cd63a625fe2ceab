from __future__ import annotations

import numpy as np

from composer.core import Timestamp
from composer.history import LiveHistory


def test_long_runs_are_thinned_so_that_extremes_stay() -> None:
    live = LiveHistory("night", limit=3000)
    generator = np.random.default_rng(0)
    losses = generator.normal(size=20_000)
    for step, loss in enumerate(losses.tolist()):
        values = {"loss": loss} if step % 100 else {"loss": loss, "rare": loss}
        live.__receive__(values, step, Timestamp(batch=step, total_wct=float(step)))
    history = live.history()
    kept, rare = history["loss"], history["rare"]
    assert 1000 < len(kept) <= 3000
    assert (kept.values.min(), kept.values.max()) == (losses.min(), losses.max())
    assert (losses[kept.step] == kept.values).all()
    assert kept.over("seconds").tolist() == kept.step.tolist()
    assert rare.step.tolist() == list(range(0, 20_000, 100))  # shorter series have room
    assert live.history()["loss"].values.tolist() == kept.values.tolist()


def test_resumptions_stay_known_when_thinned() -> None:
    live = LiveHistory("night", limit=3000)
    for step in [*range(3000), *range(1500, 3500)]:
        live.__receive__({"loss": step}, step, Timestamp(batch=step, total_wct=float(step)))
    history = live.history()
    assert (np.diff(history["loss"].step) > 0).all()
    assert history.replaced["loss"].step.min() >= 1500


def test_large_arrays_are_kept_once() -> None:
    live = LiveHistory("night")
    for step in range(3):
        live.__receive__({"matrix": np.full((2, 2), step)}, step, Timestamp(batch=step))
    history = live.history()
    assert history.series == {}
    assert (history.arrays["matrix"].step, history.arrays["matrix"].values.tolist()) == (2, [[2, 2], [2, 2]])
