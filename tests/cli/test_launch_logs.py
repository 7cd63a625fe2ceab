"""Log files of ranks, and the report of failed ranks."""

from __future__ import annotations

import io
import os

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from composer.cli.launch_logs import RankLogs, exit_code, report_failures
from composer.cli.launch_rank import STDERR_FILE, STDOUT_FILE


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def envs(first: int = 0, count: int = 2, size: int = 2, attempt: int = 0) -> dict[int, dict[str, str]]:
    """The environment variables of the ranks of a node, as torch's launcher makes them."""
    same = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": first // count}
    same |= {"TORCHELASTIC_RESTART_COUNT": attempt, "TORCHELASTIC_MAX_RESTARTS": 2}
    made = [{"RANK": first + i, "LOCAL_RANK": i, **same} for i in range(count)]
    return {i: {name: str(value) for name, value in env.items()} for i, env in enumerate(made)}


def failed(**codes: int) -> dict[int, ProcessFailure]:
    """How ranks ended, in the order in which that was seen, all within one second."""
    made = {int(rank[1:]): ProcessFailure(0, 1000 + int(rank[1:]), code, "") for rank, code in codes.items()}
    for failure in made.values():
        failure.timestamp = 5
    return made


def report(logs: RankLogs, failures: dict[int, ProcessFailure]) -> tuple[int, str]:
    stream = io.StringIO()
    return report_failures(failures, logs, stream), stream.getvalue()


def test_the_first_rank_of_a_node_writes_to_the_terminal() -> None:
    logs, ranks = RankLogs(None, None), envs(first=2, size=4)
    destination = logs.reify(ranks)
    assert destination.stdouts == destination.stderrs == {0: "", 1: ""}
    assert STDOUT_FILE not in ranks[0]
    assert logs.files(2) is None
    assert tuple(map(str, logs.files(3))) == (ranks[1][STDOUT_FILE], ranks[1][STDERR_FILE])
    assert [ranks[i]["NODE_RANK"] for i in ranks] == ["1", "1"]
    assert ranks[1]["TORCHELASTIC_ERROR_FILE"] == destination.error_files[1]


def test_user_log_files(tmp_path) -> None:
    logs, ranks = RankLogs(f"{tmp_path}/o{{rank}}", f"{tmp_path}/e/{{node_rank}}-{{local_rank}}"), envs()
    logs.reify(ranks)
    assert logs.files(1) == (tmp_path / "o1", tmp_path / "e" / "0-1")
    logs.close(keep=True)
    assert not logs.folder.exists()


def test_unexpected_ranks() -> None:
    RankLogs(None, None, {"RANK": 2, "WORLD_SIZE": 4}).reify(envs(first=2, size=4))
    with pytest.raises(ValueError, match="RANK is 2, not 3, WORLD_SIZE is 4, not 8"):
        RankLogs(None, None, {"RANK": 3, "WORLD_SIZE": 8}).reify(envs(first=2, size=4))


def test_nonempty_folder_is_kept(capsys) -> None:
    logs = RankLogs(None, None)
    logs.reify(envs())
    logs.files(1)[0].write_text("")
    logs.close(keep=True)
    assert not logs.folder.exists()
    logs = RankLogs(None, None)
    logs.reify(envs())
    logs.files(1)[0].write_text("something")
    logs.close(keep=True)
    assert capsys.readouterr().err == f"composer: the output of the ranks is in {logs.folder}\n"
    assert logs.folder.exists()
    logs.close(keep=False)
    assert not logs.folder.exists()


def test_terminated_ranks_are_not_the_cause() -> None:
    logs = RankLogs(None, None)
    logs.reify(envs(count=4, size=4))
    logs.files(2)[1].write_text("".join(f"line {i}\n" for i in range(10_000)))
    code, message = report(logs, failed(r0=143, r2=3, r1=-15, r3=-15))
    assert code == 3
    lines = message.splitlines()
    assert lines[0] == f"composer: rank 2 (process 1002) failed with exit code 3. The end of {logs.files(2)[1]}:"
    assert lines[2].startswith("line ")
    assert lines[-2:] == ["line 9999", ""] or lines[-1] == "line 9999"
    assert 1000 < len(lines) < 3000
    assert "rank 1" not in message


def test_first_rank_to_report_is_the_cause() -> None:
    logs = RankLogs(None, None)
    logs.reify(envs(count=3, size=3))
    for rank, when in ((1, 200), (2, 100)):
        logs.files(rank)[1].write_text(f"error of {rank}")
        os.utime(logs.files(rank)[1], (when, when))
    code, message = report(logs, failed(r0=1, r1=4, r2=7))
    assert code == 7
    lines = [line for line in message.splitlines() if line.startswith("composer: ")]
    assert lines[0].startswith("composer: rank 2 ")
    assert lines[1:] == [
        f"composer: then rank 1 failed with exit code 4: {logs.files(1)[1]}",
        "composer: then rank 0 failed with exit code 1",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-9, "killed by SIGKILL, which the system sends when it is out of memory"),
        (143, "rank 0 (process 1000) stopped after SIGTERM (exit code 143); its output is above"),
        (139, "failed with exit code 139"),  # a shell's code for a crash
        (-11, "killed by SIGSEGV;"),
        (-63, "killed by signal 63"),
    ],
)
def test_exit_codes_and_signals(code: int, message: str) -> None:
    logs = RankLogs(None, None)
    logs.reify(envs())
    left, text = report(logs, failed(r0=code))
    assert left == exit_code(code) == (code if code > 0 else 128 - code)
    assert message in text
    assert "its output is above" in text
    assert "it wrote nothing" in report(logs, failed(r1=1))[1]


def test_all_ranks_terminated_from_outside() -> None:
    logs = RankLogs(None, None)
    logs.reify(envs())
    assert report(logs, failed(r0=-15, r1=143))[0] == 143


def test_restart_shows_the_cause(capsys) -> None:
    logs = RankLogs(None, None)
    logs.reify(envs())
    before = logs.files(1)[1]
    before.write_text("the reason\n")
    logs.failures = failed(r1=-9)
    logs.reify(envs(attempt=1))
    written = capsys.readouterr().err
    assert written.startswith("composer: rank 1 (process 1001) was killed by SIGKILL")
    assert written.endswith(f"The end of {before}:\n\nthe reason\n\ncomposer: restart 1 of 2\n")
    assert logs.files(1)[1] != before
    logs.reify(envs(attempt=2))
    assert capsys.readouterr().err == "composer: restart 2 of 2\n"
