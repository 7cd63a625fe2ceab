"""The same training under Ray Train, whose workers are the processes: Ray starts them and sets up their group.

pip install 'ray[train]'
python examples/distributed/on_ray.py --processes 2 --strategy fsdp
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

HERE = Path(__file__).resolve().parent


def worker(config: dict[str, Any]) -> None:
    """One process: Ray has set the variables that composer reads, and made the group."""
    sys.path.insert(0, str(HERE))
    from digits import train

    ray.train.report({"accuracy": train(config["arguments"])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="one GPU for each process")
    given, rest = parser.parse_known_args()
    if not any(argument.startswith("--save-folder") for argument in rest):
        # The workers have working directories of their own.
        rest += ["--save-folder", str(Path.cwd() / "runs" / "{run_name}")]
    trainer = TorchTrainer(
        worker,
        train_loop_config={"arguments": rest},
        # All kinds of tensors travel: what is counted by gloo, gradients on GPUs by NCCL.
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if given.gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=given.processes, use_gpu=given.gpu),
        run_config=RunConfig(storage_path=str(Path.cwd() / "runs" / "ray")),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
