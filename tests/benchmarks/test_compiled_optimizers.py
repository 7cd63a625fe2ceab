"""The benchmark of compiled optimizer steps: its optimizers step, and the report of given times."""

from __future__ import annotations

import pytest

from benchmarks import compiled_optimizers as benchmark


@pytest.mark.parametrize("name", benchmark.OPTIMIZERS)
def test_optimizer_changes_its_weights(name: str) -> None:
    optimizer = benchmark.make_optimizer(name, 2, 8)
    before = [parameter.clone() for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.step()
    after = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert not any(old.equal(new) for old, new in zip(before, after, strict=True))


def test_report_compares_with_the_fastest_other_form() -> None:
    times = {"loop": [4.0] * 3, "fused": [1.0] * 3, "compiled": [2.0] * 3}
    own = {"start": 1.0, "times": {benchmark.OWN: [1.0] * 3}}
    report = benchmark.report_of({"AdamW, small": {"start": 9.0, "times": times}, "DecoupledAdamW, small": own})
    assert any(note.endswith("fastest other form: AdamW, small: 0.50.") for note in report.notes)
    assert [row[1] for row in report.rows] == ["loop", "fused", "compiled", benchmark.OWN]
    assert [row[-1] for row in report.rows] == ["-", "-", "9.0", "-"]
