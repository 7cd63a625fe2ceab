"""A process group of one, by NCCL on a GPU and by gloo on the CPU: each strategy trains as none does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from composer import Trainer, dist
from composer.parallel import prepare_ddp_module
from composer.parallel.ddp import DDPSyncStrategy
from tests import on_device
from tests.common import regression_data
from tests.design import ROOT
from tests.parallel.sharded import Blocks, adam, assert_same, full_weights

PLAN = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}


@pytest.fixture
def group(accelerator: str) -> Iterator[str]:
    """The backend of the device's tensors."""
    dist.initialize_dist("gpu" if accelerator == "cuda" else "cpu", timeout=60.0)
    yield "nccl" if accelerator == "cuda" else "gloo"
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


def train(device: str, config: Any = None, dtype: torch.dtype = torch.float32, **arguments: Any) -> Trainer:
    """A trainer after two epochs."""
    torch.manual_seed(0)
    model = arguments.pop("model", None) or Blocks(dtype)
    arguments.setdefault("optimizers", adam(model))
    arguments.setdefault("precision", "fp32")
    trainer = Trainer(
        model=model,
        train_dataloader=regression_data(4, 8, dtype=dtype),
        max_duration="2ep",
        progress_bar=False,
        parallelism_config=config,
        device=device,
        seed=1,
        **arguments,
    )
    trainer.fit()
    return trainer


def end_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    found = {name: tensor.cpu() for name, tensor in full_weights(trainer.state.model).items()}
    trainer.close()
    return found


def test_the_backend(group: str) -> None:
    tensor = torch.ones(3, device=on_device.device())
    assert torch_dist.get_backend(torch_dist.group.WORLD) in (group, "undefined", f"cpu:gloo,cuda:{group}")
    torch_dist.all_reduce(tensor)
    torch_dist.all_reduce(torch.ones(3))
    assert tensor.tolist() == [1.0] * 3
    assert dist.all_gather_object({"a": [1, "b"]}) == [{"a": [1, "b"]}]
    objects = [{"c": 2}]
    dist.broadcast_object_list(objects)
    assert objects == [{"c": 2}]
    dist.barrier()


CONFIGS: dict[str, Any] = {
    "plain": {},
    "in microbatches": {"fsdp": {}, "more": {"device_train_microbatch_size": 4}},
    "kept gathered": {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}},
    "recomputed": {"fsdp": {"activation_checkpointing": True}},
    "selective, offloaded": {"fsdp": {"activation_checkpointing": "selective", "activation_cpu_offload": True}},
    "offloaded": {"fsdp": {"activation_cpu_offload": True}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_fsdp(name: str, group: str, accelerator: str) -> None:
    case = CONFIGS[name]
    more = case.get("more", {})
    expected = end_of(train(accelerator, **more))
    found = end_of(train(accelerator, {"fsdp": case.get("fsdp", {})}, **more))
    assert_same(found, expected, atol=1e-5)


def test_fsdp_in_bf16(group: str, accelerator: str) -> None:
    found = end_of(train(accelerator, {"fsdp": {"mixed_precision": "DEFAULT"}}, precision="amp_bf16"))
    assert_same(found, end_of(train(accelerator, precision="fp32")), atol=3e-2)


def test_fsdp_of_weights_on_the_meta_device(group: str, accelerator: str) -> None:
    with torch.device("meta"):
        model = Blocks(torch.float32)
    trainer = train(accelerator, {"fsdp": {}}, model=model)
    found = end_of(trainer)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}


@pytest.mark.parametrize("sync", list(DDPSyncStrategy), ids=str)
def test_ddp(sync: Any, group: str, accelerator: str) -> None:
    model = on_device.place(Blocks(torch.float32))
    wrapped = prepare_ddp_module(model, find_unused_parameters=False)
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    expected = end_of(train(accelerator, device_train_microbatch_size=4))
    found = end_of(train(accelerator, device_train_microbatch_size=4, ddp_sync_strategy=sync))
    assert_same(found, expected, atol=1e-5)


def test_tensor_parallel(group: str, accelerator: str) -> None:
    expected = end_of(train(accelerator))
    config = {"tp": {"layer_plan": PLAN, "tensor_parallel_degree": 1}}
    assert_same(end_of(train(accelerator, config)), expected, atol=1e-5)


def test_a_sharded_checkpoint(group: str, accelerator: str, tmp_path: Path) -> None:
    config = {"fsdp": {"state_dict_type": "sharded"}}
    saved = train(accelerator, config, save_folder=str(tmp_path), save_interval="1ep")
    expected = end_of(saved)
    first = sorted(path for path in tmp_path.iterdir() if path.name.startswith("ep1-"))[0]
    resumed = train(accelerator, config, load_path=str(first))
    assert_same(end_of(resumed), expected, atol=0.0)


def test_deepspeed(group: str, accelerator: str) -> None:
    pytest.importorskip("deepspeed")
    if accelerator == "cpu":
        pytest.skip("tests/parallel/test_deepspeed.py has it on the CPU")
    expected = end_of(train(accelerator, optimizers=None))
    found = end_of(train(accelerator, optimizers=None, deepspeed_config={"zero_optimization": {"stage": 1}}))
    assert found.keys() == expected.keys()


@pytest.mark.filterwarnings(
    r"ignore:The \.grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler looks
def test_a_compiled_model_in_a_group(group: str, accelerator: str) -> None:
    config = {} if accelerator == "cuda" else {"backend": "aot_eager"}
    found = end_of(train(accelerator, {"fsdp": {}}, compile_config=config))
    assert_same(found, end_of(train(accelerator)), atol=1e-4)


SCRIPT = """
import sys, torch
from composer import dist
from tests.gpu.test_group import end_of, train
device = sys.argv[1]
dist.initialize_dist("gpu" if device == "cuda" else "cpu", timeout=60.0)
assert dist.get_world_size() == 1 and torch.distributed.is_initialized()
end_of(train(device, {"fsdp": {}}))
print("trained on", device)
"""


def test_the_launcher_and_a_quiet_end(accelerator: str, tmp_path: Path) -> None:
    """Nothing is said of a process group that was not destroyed, and no process is left."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "composer.cli.main", "-n", "1", str(script), accelerator],
        env={**variables, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"trained on {accelerator}" in done.stdout
    said = done.stdout + done.stderr
    assert "destroy_process_group" not in said, said[-3000:]
    assert "Traceback" not in said, said[-3000:]
