"""Two nodes in separate network namespaces, with a cable that can be unplugged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.nodes import BATCHES, Node, alone, go_on, hold, is_alive, told, wait_until
from tests.older_torch import HAS_GRACE_PERIOD

FIRST, SECOND = "10.77.0.1", "10.77.0.2"
# Free: nothing else is in these networks.
PORT = 29500
pytestmark = pytest.mark.slow


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


class Cable:
    """Two namespaces of the network, each with the end of a cable."""

    def __init__(self) -> None:
        self.names = [f"composer-{os.getpid()}-{one}" for one in "ab"]

    def create(self) -> None:
        first, second = self.names
        for name in self.names:
            run(f"ip netns add {name}")
        run(f"ip link add cable netns {first} type veth peer name cable netns {second}")
        for name, address in zip(self.names, (FIRST, SECOND), strict=True):
            run(f"ip -n {name} addr add {address}/24 dev cable")
            run(f"ip -n {name} link set lo up")
        self.plug("up")

    def plug(self, state: str) -> None:
        for name in self.names:
            run(f"ip -n {name} link set cable {state}")

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces of the network need Linux, root and the command ip")
    made = Cable()
    try:
        made.create()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no namespaces of the network here: {error.stderr}")
    yield made
    made.remove()


@pytest.fixture
def start(cable: Cable, tmp_path: Path) -> Iterator[Callable[..., list[Node]]]:
    started: list[Node] = []

    def start(arguments: list[str], *more: list[str], what: list[str] | None = None) -> list[Node]:
        """A launcher on each node; ``more`` are the arguments for one of them."""
        nodes = [
            Node(tmp_path, [*arguments, *own], what or [], ["ip", "netns", "exec", name])
            for name, own in zip(cable.names, more or ([], []), strict=True)
        ]
        started.extend(nodes)
        return nodes

    yield start
    for node in started:
        node.close()


def test_network_cable_is_unplugged_and_replugged(
    start: Callable[..., list[Node]], cable: Cable, tmp_path: Path
) -> None:
    """Both sides exit and name the missing ranks; the same commands then resume the run."""
    arguments = ["-n", "1", "--nnodes", "2", "--master_addr", FIRST, "--master_port", str(PORT)]
    places = ["--node_rank", "0"], ["--node_rank", "1"]
    hold(tmp_path, 7)
    nodes = start(arguments, *places)
    wait_until(lambda: all((tmp_path / f"7-{rank}of2").exists() for rank in range(2)), *nodes)
    cable.plug("down")
    go_on(tmp_path)
    for rank, node in enumerate(nodes):
        assert node.end() == 1
        assert re.search(rf"MissingRankError: Rank {1 - rank} did not join the collective", node.output), node.output
        assert not is_alive(told(tmp_path, "start", rank)["pid"])
    assert not list(tmp_path.glob("end-*"))

    cable.plug("up")
    nodes = start(arguments, *places)
    for rank, node in enumerate(nodes):
        assert node.end() == 0, node.output
        assert told(tmp_path, "start", rank)["from"] == 6
        end = told(tmp_path, "end", rank)
        assert end["samples"] == 2 * BATCHES
        assert end["weights"] == pytest.approx(alone(), abs=1e-6)


def test_node_that_fails_permanently(start: Callable[..., list[Node]], tmp_path: Path) -> None:
    """The other node continues alone, from the checkpoint whose shards both wrote."""
    settings = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"
    meeting = ["--rdzv_endpoint", f"{FIRST}:{PORT + 1}", "--rdzv_conf", settings]
    hold(tmp_path, 7)
    # If the second one is late, the first has started alone, and is held when it restarts.
    patience = ["--max_restarts", "1", *(["--grace_period", "5"] if HAS_GRACE_PERIOD else [])]
    nodes = start(["-n", "1", "--nnodes", "1:2", *patience, *meeting], what=["fsdp"])
    wait_until(lambda: all((tmp_path / f"7-{rank}of2").exists() for rank in range(2)), *nodes)
    stays, dies = nodes
    pids = [told(tmp_path, "7", rank)["pid"] for rank in range(2)]
    dies.close()
    wait_until(lambda: any(not is_alive(pid) for pid in pids), stays)
    go_on(tmp_path)
    assert stays.end() == 0, stays.output
    assert "composer: restart 1 of 1" in stays.output
    assert not any(map(is_alive, pids))
    assert told(tmp_path, "start", size=1)["from"] == 6
    end = told(tmp_path, "end", size=1)
    assert end["samples"] == 2 * BATCHES
    assert end["weights"] == pytest.approx(alone(), abs=1e-6)
