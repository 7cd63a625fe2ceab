"""A run with everything that a page shows, and a text wherever a program names something."""

from __future__ import annotations

import numpy as np

from composer.core.run_event import RunEvent
from composer.history import History, HistoryBuilder, LoggedArray, LoggedTable

__all__ = ["HOSTILE", "history_with"]

HOSTILE = "</script><img src=x onerror=alert(1)> \"q\" 'é' <b>%{x}</b> & ${y} $a$"


def history_with(text: str = "plain", steps: int = 400) -> History:
    """A run that was resumed once, with names and texts that contain a text."""
    builder = HistoryBuilder(f"night {text}")
    generator = np.random.default_rng(0)
    for step in range(steps):
        values = {
            "loss/train/total": 2 / (1 + step) + 0.1 * generator.random(),
            f"loss/train/{text}": np.nan if step == 3 else 1.0,
            "lr-SGD/group0": 0.1,
            "throughput/samples_per_sec": 100 + generator.random(),
            "l2_norm/grad/global": generator.random(),
            f"mine/{text}": -1.0,
            **{f"l2_norm/grad/layer{number}": float(number) for number in range(12)},
        }
        builder.add(step, values, epoch=step // 100, seconds=0.1 * step)
        if step % 100 == 99:
            now = {"epoch": step // 100 + 1, "seconds": 0.1 * (step + 1)}
            builder.add(step + 1, {f"metrics/eval/{text}": step / steps, "metrics/eval/Accuracy": step / steps}, **now)
            path = {"path": f"s3://runs/{text}/ep{step // 100}.pt"}
            builder.events.append(RunEvent("evaluation", step + 1, "eval", 0.1 * step, 1.7e9 + step))
            builder.events.append(RunEvent("checkpoint", step + 1, f"saved {text}", 0.1 * step, 1.7e9, path))
    builder.add(steps, {f"metrics/eval/ConfusionMatrix {text}": [[8, 1], [2, 9]], f"word {text}": text})
    builder.events += [
        RunEvent(kind, steps // 2 + number, f"{kind} {text}")
        for number, kind in enumerate(("resumption", "spike", "nan", "end"))
    ]
    builder.hyperparameters |= {
        "model": {f"depth {text}": 2},
        "name": text,
        "api_key": "hunter2 is masked by the logger",
    }
    builder.tables[f"table {text}"] = LoggedTable([f"column {text}", "b"], [[text, 1.5], ["short row"]], steps)
    builder.environment = {"versions": {"torch": text}}
    builder.model = {"name": text, "columns": list("abcdef"), "rows": [[text] * 6], "notes": [text]}
    builder.remarks.append(f"about {text}")
    history = builder.history()
    history.arrays["vector"] = LoggedArray(np.arange(3.0), 0)
    return history
