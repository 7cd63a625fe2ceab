"""The cost of a schedule beside torch's."""

from __future__ import annotations

from benchmarks import schedule_cost


def test_schedule_cost() -> None:
    report = schedule_cost.measure(rounds=3, calls=20)
    assert report.rows[0][0].startswith("LambdaLR of torch")
    assert report.rows[0][-1] == 1.0
    assert all(len(report.samples[name]) == 3 and min(report.samples[name]) > 0 for name, *_ in report.rows)
    (goal,) = report.goals
    assert goal.value == max(row[-1] for row in report.rows if "torch" not in row[0])


def test_what_is_timed_moves_the_rate() -> None:
    for name, schedule in schedule_cost.subjects(steps=10).items():
        before = schedule.get_last_lr()
        schedule.optimizer.step()
        for _ in range(3):
            if hasattr(schedule, "state"):
                schedule.state.timestamp = schedule.state.timestamp.to_next_batch()
            schedule.step()
        assert (schedule.get_last_lr() != before) is (name != "WarmupStableDecayScheduler")
