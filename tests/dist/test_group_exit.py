"""Process groups at exit: those of this library are destroyed, and nothing hangs or aborts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as torch_dist

from composer import dist
from composer.dist import group_exit
from composer.dist.rendezvous.loopback import get_free_tcp_port

SCRIPT = Path(__file__).with_name("exiting.py")


Outcome = tuple[list[int], list[str], float]
"""What ranks exit with, what they print, and how many seconds the first took to exit."""


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """The process that each rank is a fork of, which saves it the import of torch."""
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.fixture
def run(forking: subprocess.Popen[str], tmp_path: Path) -> Callable[..., Outcome]:
    """Start ranks that exit in a way, and wait for them."""

    def start(how: str, size: int = 2) -> Outcome:
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_tcp_port()), "WORLD_SIZE": str(size)}
        given |= {"LOCAL_WORLD_SIZE": str(size), "NODE_RANK": "0"}
        environments = [{**given, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        outputs = [tmp_path / f"{how}-{rank}" for rank in range(size)]
        forking.stdin.write(json.dumps([how, environments, list(map(str, outputs))]) + "\n")
        forking.stdin.flush()
        codes, seconds = json.loads(forking.stdout.readline())
        return codes, [output.read_text() for output in outputs], seconds

    return start


def test_pending_collective_finishes_before_interpreter_exit(run: Callable[..., Outcome]) -> None:
    """A thread of gloo that ends it later aborts the process."""
    codes, texts, _ = run("late")
    assert codes == [0, 0], texts
    assert [text.splitlines()[-1] for text in texts] == ["destroyed ended"] * 2, texts


@pytest.mark.parametrize("how", ["own", "replaced"])
def test_user_created_group_is_left_alone(run: Callable[..., Outcome], how: str) -> None:
    codes, texts, _ = run(how, 1)
    assert codes == [0], texts
    assert texts[0].splitlines()[-1].partition(" ")[0] == "initialized", texts


def test_earlier_exit_handlers_can_use_the_group(run: Callable[..., Outcome]) -> None:
    """And those that write checkpoints in the background, which come before all handlers."""
    codes, texts, _ = run("handlers")
    assert codes == [0, 0], texts
    assert [text.splitlines() for text in texts] == [["saved", "met 2", "destroyed ended"]] * 2


def test_only_handlers_registered_before_import_run_later() -> None:
    code = """
        import atexit, sys
        atexit.register(print, "before")
        import composer
        atexit.register(print, "after")
        assert not {"torch", "torch.distributed", "composer.dist"} & sys.modules.keys()
        composer._at_exit.call_last(lambda: print("group"))
        atexit.register(print, "late")
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (found.stdout.split(), found.stderr) == (["late", "after", "group", "before"], "")


def test_a_forked_process_leaves_the_group_of_its_parent(run: Callable[..., Outcome]) -> None:
    """Which, though alone in it, destroys it."""
    codes, texts, _ = run("forked", 1)
    assert codes == [0], texts
    assert texts[0].count("destroyed") == 1, texts
    assert texts[0].splitlines()[-1] == "destroyed ended", texts


@pytest.mark.parametrize(("how", "code"), [("stuck", 0), ("error", 1)])
def test_exit_does_not_wait_for_a_stuck_rank(run: Callable[..., Outcome], how: str, code: int) -> None:
    codes, texts, seconds = run(how)
    assert codes[0] == code, texts
    # gloo waits after an error too.
    assert "Other ranks have not finished yet: the process group was not destroyed within 1 s." in texts[0], texts
    assert ("an error of the user's" in texts[0]) == (how == "error")
    assert seconds < 60  # of which most is for imports; the 90 s of the timeout of collectives are not waited for


def test_a_group_that_the_user_destroyed_is_forgotten() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "process-group"}
    for _ in range(3):
        dist.initialize_dist("cpu")
        torch_dist.destroy_process_group()
    group_exit._end()
    assert not torch_dist.is_initialized()
    left = {thread for thread in threading.enumerate() if thread.name == "process-group"} - before
    assert len(left) <= 1, "threads of groups that are gone"


def test_object_that_releases_a_group_may_be_freed_first() -> None:
    class Owner:
        def release(self) -> None:
            raise AssertionError("nobody has it any more")

    owner = Owner()
    group_exit.release_at_exit(owner.release)
    del owner
    dist.initialize_dist("cpu")
    group_exit._end()
    assert not torch_dist.is_initialized()


def test_failing_release_does_not_keep_the_group(caplog: pytest.LogCaptureFixture) -> None:
    class Owner:
        released = False

        def release(self) -> None:
            self.released = True
            raise RuntimeError("a release that fails")

    owners = Owner(), Owner()
    for owner in owners:
        group_exit.release_at_exit(owner.release)
    dist.initialize_dist("cpu")
    group_exit._end()
    assert not torch_dist.is_initialized()
    assert [owner.released for owner in owners] == [True, True]
    assert caplog.text.count("RuntimeError: a release that fails") == 2
