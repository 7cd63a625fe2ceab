"""Process groups and collectives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as torch_dist
from torch._C._distributed_c10d import FakeProcessGroup

from composer import dist
from composer.devices import DeviceCPU
from composer.dist import setup
from composer.dist.ranks import check_environment
from composer.warnings import ComposerWarning

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    yield
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


@pytest.fixture(params=[False, True], ids=["bare", "initialized"])
def single(request):
    """A single process, with and without a process group."""
    if request.param:
        dist.initialize_dist(DeviceCPU(), timeout=5)
    assert dist.is_initialized() is request.param


def test_single_process_identity(single):
    assert (dist.get_world_size(), dist.get_global_rank(), dist.get_local_world_size()) == (1, 0, 1)
    assert (dist.get_local_rank(), dist.get_node_rank()) == (0, 0)
    assert dist.is_available()


def test_single_process_collectives(single):
    tensor = torch.tensor([1, 2])
    dist.barrier()
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    assert dist.all_gather(tensor)[0] is tensor
    assert tensor.tolist() == [1, 2]
    assert dist.all_gather_object("a") == ["a"]
    objects = ["a", {"b": 1}]
    dist.broadcast_object_list(objects)
    assert objects == ["a", {"b": 1}]
    with pytest.raises(ValueError, match=r"reduce_operation must be one of 'SUM'.*Did you mean 'SUM'\?"):
        dist.all_reduce(tensor, "sumn")


def test_maximum_of_a_single_process(single):
    assert dist.largest(-3) == -3


def test_environment_is_read(monkeypatch):
    for name, value in zip(NAMES, (6, 8, 2, 4, 4, 5), strict=True):
        monkeypatch.setenv(name, str(value))
    assert dist.get_global_rank() == 6
    assert dist.get_world_size() == 8
    assert dist.get_local_rank() == 2
    assert dist.get_local_world_size() == 4
    assert dist.get_node_rank() == 4
    monkeypatch.delenv("NODE_RANK")
    assert dist.get_node_rank() == 5


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "first"}, "RANK must be an integer, 0 or more, but is 'first'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be .* but is '-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2: it must be from 0 to 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be an integer, 1 or more, but is '0'"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE must be .* but is ''"),
        (
            {"LOCAL_WORLD_SIZE": "0"},
            "LOCAL_WORLD_SIZE must be an integer, 1 or more, but is '0'. Unset it",
        ),
        ({"LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE is 2, .* but the world size is 1"),
        ({"LOCAL_WORLD_SIZE": "1.5"}, "LOCAL_WORLD_SIZE must be .* but is '1.5'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK must be"),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4"),
        ({"NODE_RANK": "-1"}, "NODE_RANK must be"),
        ({"GROUP_RANK": "x"}, "GROUP_RANK must be"),
    ],
    ids=str,
)
def test_bad_environment(environ, message, monkeypatch):
    full = {"LOCAL_RANK": "0", "NODE_RANK": "0", "LOCAL_WORLD_SIZE": "1", "RANK": "0", **environ}
    for name, value in full.items():
        if name != "NODE_RANK" or "GROUP_RANK" not in environ:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"^The environment variable {message}"):
        for get in (dist.get_global_rank, dist.get_world_size, dist.get_local_rank, dist.get_local_world_size):
            get()
        dist.get_node_rank()


@pytest.mark.parametrize("start", [lambda: dist.initialize_dist("cpu"), check_environment], ids=["start", "check"])
@pytest.mark.parametrize(
    ("environ", "message"),
    [
        *(
            ({"WORLD_SIZE": "1", name: value}, f"{name} must be an integer, 0 or more, but is '{value}'. Unset it")
            for name in ("RANK", "LOCAL_RANK", "NODE_RANK")
            for value in ("", "-1", "abc", "1.5", "1_0", "٣")
        ),
        *(
            ({"WORLD_SIZE": "1", name: "1"}, f"{name} is 1, but WORLD_SIZE is 1")
            for name in ("LOCAL_RANK", "NODE_RANK")
        ),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "1"}, "LOCAL_RANK is 1, but RANK is 0: .* Unset both"),
    ],
    ids=str,
)
def test_bad_environment_is_reported_early(environ, message, start, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"^The environment variable {message}"):
        start()


def test_rank_without_world_size(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(dist.MissingEnvironmentError, match=r"RANK is 0, but WORLD_SIZE is not set\. Unset RANK"):
        dist.initialize_dist("cpu")


def test_bad_environment_is_reported_before_torchmetrics_reads_it():
    """By the metrics and by the models, none of which has imported it then."""
    code = """
import sys, torch
from composer.models import ComposerClassifier
def of_metrics():
    from composer.metrics import MIoU
for call in (of_metrics, lambda: ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)):
    try:
        call()
    except ValueError as error:
        print(error)
    assert "torchmetrics" not in sys.modules
"""
    environment = {**os.environ, "LOCAL_RANK": "abc"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The environment variable LOCAL_RANK must be") == 2


def test_missing_environment(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for function, name in (
        (dist.get_local_rank, "LOCAL_RANK"),
        (dist.get_local_world_size, "LOCAL_WORLD_SIZE"),
        (dist.get_node_rank, "NODE_RANK"),
        (dist.initialize_dist, "RANK"),
    ):
        with pytest.raises(dist.MissingEnvironmentError, match=f"world size is 2, .* variable {name} is not set"):
            function()


def test_environment_and_group_must_agree(monkeypatch):
    dist.initialize_dist("cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 2, but that of the process group is 1"):
        dist.get_world_size()


def test_collectives_without_a_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    tensor = torch.ones(1)
    for call in (
        dist.barrier,
        lambda: dist.all_reduce(tensor),
        lambda: dist.broadcast(tensor, 0),
        lambda: dist.all_gather(tensor),
        lambda: dist.all_gather_object(1),
        lambda: dist.broadcast_object_list([1]),
    ):
        with pytest.raises(RuntimeError, match=r"the process group is not initialized[.] Call composer.dist.init"):
            call()


def test_initialize_twice_and_with_another_backend():
    dist.initialize_dist("cpu")
    dist.initialize_dist("cpu")
    dist.initialize_dist(SimpleNamespace(torch_device=torch.device("mps"), dist_backend=""))
    with pytest.warns(ComposerWarning, match="uses 'gloo' on device 'cuda', .* 'nccl' is faster"):
        dist.initialize_dist("gpu")
    with pytest.raises(
        RuntimeError, match=r"backend .*, which does not support tensors on xpu, but training on device 'xpu'"
    ):
        dist.initialize_dist("xpu")


@pytest.fixture
def custom_backend(monkeypatch):
    """Registers a backend, under a name that torch has not, for some devices; it does nothing."""
    tables = ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map")

    def register(name, devices):
        for table in tables:
            monkeypatch.setattr(torch_dist.Backend, table, dict(getattr(torch_dist.Backend, table)))
        monkeypatch.setattr(torch_dist.Backend, "backend_list", list(torch_dist.Backend.backend_list))
        make = lambda store, rank, size, timeout: FakeProcessGroup._create_internal(rank, size)  # noqa: E731
        torch_dist.Backend.register_backend(name, make, devices=devices)

    yield register
    for name in ("MINE", "PART"):
        if hasattr(torch_dist.Backend, name):
            delattr(torch_dist.Backend, name)


@pytest.mark.parametrize(
    ("registered", "backend", "device"),
    [
        (["cpu", "cuda"], "mine", "gpu"),
        (["cpu"], "mine", "cpu"),
        (["cuda"], "cpu:gloo,cuda:mine", "gpu"),
        ([], "fake", "gpu"),
    ],
)
def test_group_with_any_backend_for_the_device(registered, backend, device, custom_backend):
    if registered:
        custom_backend("mine", registered)
    torch_dist.init_process_group(backend, store=torch_dist.HashStore(), rank=0, world_size=1)
    dist.initialize_dist(device)
    assert torch_dist.get_world_size() == 1


@pytest.mark.parametrize(
    ("backend", "device", "remedy"),
    [("part", "gpu", "cpu:gloo,cuda:nccl"), ("part", "cpu", "gloo"), ("cuda:part", "gpu", "cpu:gloo,cuda:nccl")],
)
def test_a_group_without_tensors_on_the_cpu(backend, device, remedy, custom_backend):
    """As of "nccl" alone, which this machine may not have."""
    custom_backend("part", ["cuda"])
    torch_dist.init_process_group(backend, store=torch_dist.HashStore(), rank=0, world_size=1)
    told = rf"'cuda:part', which does not support tensors on cpu, but .* Use init_process_group\('{remedy}'\)"
    with pytest.raises(RuntimeError, match=told):
        dist.initialize_dist(device)


def test_initialize_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"device must be one of .* but got 'cpuu'\. Did you mean 'cpu'\?"):
        dist.initialize_dist("cpuu")
    with pytest.raises(ValueError, match="timeout must be greater than 0"):
        dist.initialize_dist("cpu", timeout=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="The world size is 2, but device 'mps' has no communication backend"):
        dist.initialize_dist("mps")


@pytest.mark.parametrize(("device", "backend"), [("gpu:1", "cpu:gloo,cuda:nccl"), ("cpu", "gloo"), ("mps", "gloo")])
def test_backends(monkeypatch, device, backend):
    seen = {}
    monkeypatch.setattr(torch_dist, "init_process_group", lambda backend, **rest: seen.update(backend=backend, **rest))
    dist.initialize_dist(device, timeout=7)
    assert seen["backend"] == backend
    assert seen["timeout"].total_seconds() == 7
    assert (seen["rank"], seen["world_size"]) == (0, 1)


class On:
    """A device of ours, as far as the set-up reads it."""

    dist_backend = "nccl"

    def __init__(self, device):
        self.torch_device = torch.device(device)


def test_a_gpu_rank_is_bound_to_its_gpu(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch_dist, "init_process_group", lambda backend, **rest: seen.update(rest))
    monkeypatch.setattr(setup, "join_rendezvous", lambda rank, world_size, timeout: (rank, world_size, timeout))
    monkeypatch.setattr(setup, "start_hang_watcher", lambda timeout: None)
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    for given, index in (("gpu", 1), ("gpu:3", 3), ("cuda:0", 0), (On("cuda:2"), 2), (On("cuda"), 1)):
        dist.initialize_dist(given, timeout=9)
        assert seen["device_id"] == torch.device("cuda", index), given
    dist.initialize_dist("cpu", timeout=9)
    assert seen["device_id"] is None
    # A process that sees one separate GPU, whatever its rank.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    dist.initialize_dist("gpu", timeout=9)
    assert seen["device_id"] == torch.device("cuda", 0)
    assert (seen["rank"], seen["world_size"], seen["store"]) == (5, 8, (5, 8, 9))


def test_sampler_shards(single):
    data = list(range(10))
    shares = [list(dist.get_sampler(data, num_replicas=3, rank=rank, drop_last=True)) for rank in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(9))
    assert list(dist.get_sampler(data)) == data
    shuffled = dist.get_sampler(data, shuffle=True, seed=1)
    assert sorted(shuffled) == data != list(shuffled)


def test_barrier_in_single_process(single, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for scope in (dist.run_local_rank_zero_first(), dist.busy_wait_for_local_rank_zero()):
        with pytest.raises(KeyError), scope:
            raise KeyError
    assert not list(tmp_path.iterdir())
    first, second = dist.get_node_signal_file_name(), dist.get_node_signal_file_name()
    assert first != second
    path = Path(dist.write_signal_file(first, tmp_path / "new"))
    assert path == tmp_path / "new" / first
    assert path.exists()


def test_waiting_for_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    target = tmp_path / "data"
    timer = threading.Timer(0.15, target.touch)
    timer.start()
    start = time.monotonic()
    with dist.local_rank_zero_download_and_wait(target):
        assert target.exists()
    assert time.monotonic() - start > 0.1
    timer.join()
    assert not Path(dist.write_signal_file("signal", tmp_path)).exists()


WORKER = """
import os, sys, time
import torch
from composer import dist, rng
folder = sys.argv[1]
dist.initialize_dist("cpu", timeout=30)
rank = dist.get_global_rank()
assert dist.get_world_size() == 2 and dist.get_local_rank() == rank == int(os.environ["RANK"])
for operation, expected in (("SUM", 3.0), ("max", 2.0), ("MIN", 1.0), ("PRODUCT", 2.0), ("AVG", 1.5)):
    t = torch.tensor(rank + 1.0); dist.all_reduce(t, operation); assert t.item() == expected, (operation, t)
t = torch.full((2,), rank); dist.broadcast(t, src=1); assert t.tolist() == [1, 1]
assert dist.largest(7 * rank - 5) == 2 and dist.largest(-rank) == 0 and dist.largest(2**63 - 1 - rank) == 2**63 - 1
strided = torch.arange(6).reshape(2, 3).t() + rank
assert [g.tolist() for g in dist.all_gather(strided)] == [(strided - rank + r).tolist() for r in (0, 1)]
assert dist.all_gather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
objects = [rank, "x" * (rank + 1)]; dist.broadcast_object_list(objects, src=1); assert objects == [1, "xx"]
assert list(dist.get_sampler(range(4))) == [rank, rank + 2]
done = os.path.join(folder, "first")
with dist.run_local_rank_zero_first():
    assert os.path.exists(done) is (rank == 1)
    if rank == 0:
        time.sleep(0.2); open(done, "w").close()
with dist.busy_wait_for_local_rank_zero(folder):
    if rank == 0:
        time.sleep(0.2); open(os.path.join(folder, "second"), "w").close()
assert os.path.exists(os.path.join(folder, "second"))
dist.barrier()
assert sorted(os.listdir(folder)) == ["first", "second"], os.listdir(folder)
rng.seed_all(rank)
states = rng.get_rng_state(); first = torch.rand(1)
assert len(states) == 2
rng.load_rng_state(states); assert torch.equal(torch.rand(1), first)
torch.distributed.destroy_process_group()
"""


def test_two_ranks(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(Path(dist.__file__).parents[2])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER, str(folder)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
