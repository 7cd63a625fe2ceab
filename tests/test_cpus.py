"""How many CPUs a run may use: affinity, container quotas, ranks bound to separate CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer import _cpus
from composer._cpus import cpu_quota, cpus_of_node, usable_cpus
from composer.environment import collect_env
from tests.common import trainer_of
from tests.ranks import Ranks


def tree(root: Path, cgroup: str, **files: str) -> Path:
    """A root folder with what the kernel says of cgroups."""
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_quota_of_version_2_on_any_level(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup"
    files = {
        f"{folder}/cpu.max": "max 100000\n",
        f"{folder}/a/cpu.max": "250000 100000\n",
        f"{folder}/a/b/cpu.max": "max 1",
    }
    assert cpu_quota(tree(tmp_path, "0::/a/b\n", **files)) == 2.5
    assert cpu_quota(tree(tmp_path, "0::/not/there\n")) is None
    (tmp_path / folder / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota(tree(tmp_path, "0::/not/there\n")) == 0.5


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    cgroup = "5:memory:/x\n3:cpu,cpuacct:/docker/1\n"
    files = {f"{folder}/cpu.cfs_quota_us": "400000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert cpu_quota(tree(tmp_path, cgroup, **files)) == 4.0
    (tmp_path / folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(tmp_path) is None


def test_without_a_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert cpu_quota(tree(tmp_path, "0::/\n", **{"sys/fs/cgroup/cpu.max": "garbage\n"})) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.5, 3), (0.5, 1), (64.0, 4)])
def test_the_smaller_of_both_counts(quota, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cpus, "usable_cpus", lambda: frozenset({0, 1, 6, 7}))
    monkeypatch.setattr(_cpus, "cpu_quota", lambda: quota)
    assert cpus_of_node() == expected


def bound() -> int:
    mine = frozenset({0, 1} if os.environ["LOCAL_RANK"] == "0" else {1, 2, 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cpus, "usable_cpus", lambda: mine)
        patch.setattr(_cpus, "cpu_quota", lambda: None)
        return cpus_of_node()


def test_ranks_bound_to_separate_cpus(two_ranks: Ranks) -> None:
    assert two_ranks.run(bound) == [4, 4]


def test_trainer_and_report_show_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer import environment
    from composer.loggers import InMemoryLogger

    monkeypatch.setattr(_cpus, "usable_cpus", lambda: frozenset({2, 3, 5}))
    monkeypatch.setattr(environment, "usable_cpus", lambda: frozenset({2, 3, 5}))
    monkeypatch.setattr(environment, "cpu_quota", lambda: None)
    monkeypatch.setattr(_cpus, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    log = InMemoryLogger()
    trainer_of(loggers=log).close()
    assert log.hyperparameters["num_cpus_per_node"] == 3
    assert collect_env()["machine"]["cores"] == "64, of which 3 may be used"


def test_this_host() -> None:
    assert 1 <= cpus_of_node() <= len(usable_cpus()) <= (os.cpu_count() or 1)
