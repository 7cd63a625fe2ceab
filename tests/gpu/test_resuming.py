"""Going on from a checkpoint on the device, and writing one beside training: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import rng
from composer.algorithms import EMA, MixUp
from composer.checkpoint.file_format import read
from composer.optim import DecoupledAdamW
from composer.trees import leaves
from tests import on_device
from tests.gpu.runs import all_state, different, losses_at_once, network, run_of

gpu = pytest.mark.gpu
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "amp_bf16"},
    "fp16": {"precision": "amp_fp16"},
    "compiled": {"precision": "fp32", "compile_config": {}},
    "CUDA graphs": {"precision": "fp32", "compile_config": {"mode": "reduce-overhead"}},
    "graphs alone": {"precision": "fp32", "compile_config": {"backend": "aot_eager"}},
}
ONLY_GPU = ("fp16", "compiled", "CUDA graphs")


def build(device: str, setting: str, **more: Any) -> tuple[Any, Any]:
    model, seen = network(dropout=0.5), losses_at_once()
    optimizer = DecoupledAdamW(model.parameters(), lr=0.01, weight_decay=1e-5)
    trainer, _ = run_of(
        device,
        model,
        optimizers=optimizer,
        algorithms=[MixUp(0.2), EMA(half_life="3ba")],
        callbacks=seen,
        deterministic_mode=True,
        **SETTINGS[setting],
        **more,
    )
    return trainer, seen


@pytest.mark.parametrize("setting", [pytest.param(name, marks=(gpu,) if name in ONLY_GPU else ()) for name in SETTINGS])
def test_resumes_bit_for_bit(setting: str, accelerator: str, tmp_path: Path) -> None:
    straight, expected = build(accelerator, setting, save_folder=str(tmp_path), save_interval="1ba")
    straight.fit()
    end = all_state(straight)
    straight.close()
    for batch in (1, 7):
        torch.compiler.reset()
        resumed, seen = build(accelerator, setting, load_path=str(tmp_path / f"ep0-ba{batch}-rank0.pt"))
        resumed.fit()
        assert seen.found == expected.found[batch:]
        assert not different(all_state(resumed), end)
        if setting == "fp16":
            assert resumed.state.scaler.get_scale() == straight.state.scaler.get_scale()
        resumed.close()


def tensors_of(content: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(content) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("amp_fp16", marks=gpu)])
def test_an_asynchronous_checkpoint_is_the_blocking_one(precision: str, accelerator: str, tmp_path: Path) -> None:
    """Training goes on, and changes what is being copied, while it is written."""
    files = {}
    for kind in ("blocking", "beside"):
        trainer, _ = run_of(
            accelerator,
            network(512, dropout=0.5),
            precision=precision,
            deterministic_mode=True,
            save_folder=str(tmp_path / kind),
            save_interval="2ba",
            save_async=kind == "beside",
        )
        trainer.fit()
        trainer.close()
        files[kind] = sorted((tmp_path / kind).glob("ep0-ba*.pt"))
    assert len(files["blocking"]) == len(files["beside"]) == 6
    for one, other in zip(files["blocking"], files["beside"], strict=True):
        first, second = (tensors_of(read(path)) for path in (one, other))
        assert len(first) > 20
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), one.name


def test_checkpoints_go_from_device_to_host(accelerator: str, tmp_path: Path) -> None:
    trainer, _ = run_of(accelerator, save_folder=str(tmp_path))
    trainer.fit()
    end = all_state(trainer)
    trainer.close()
    host, _ = run_of("cpu", precision="fp32", load_path=str(tmp_path / "latest-rank0.pt"))
    assert not different({name: tensor.cpu() for name, tensor in end.items()}, all_state(host))
    host.close()


def test_states_of_random_numbers_hold_the_device() -> None:
    device = on_device.device()
    torch.rand(1, device=device)
    state = rng.get_local_rng_state()
    first = torch.rand(100, device=device)
    rng.set_local_rng_state(state)
    assert torch.equal(first, torch.rand(100, device=device))
    with rng.preserve_rng_state():
        torch.rand(7, device=device)
    again = torch.rand(100, device=device)
    assert not torch.equal(first, again)
    rng.set_local_rng_state(state)
    torch.rand(100, device=device)
    assert torch.equal(again, torch.rand(100, device=device))
