"""Part nccl: a process group of one, by NCCL on a GPU and by gloo on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.gpu.options import Options
from benchmarks.gpu.suite import check
from benchmarks.report import Report

_FILE = "gpu/test_group.py"
_PROGRAM = """
import sys
import torch
import torch.distributed as group
from composer import dist

device = sys.argv[1]
dist.initialize_dist("gpu" if device == "cuda" else "cpu", timeout=60.0)
one = torch.ones(4, device=device)
group.all_reduce(one)
out = [torch.empty_like(one)]
group.all_gather(out, one)
assert torch.equal(out[0].cpu(), torch.ones(4)), out
assert dist.all_gather_object({"rank": dist.get_global_rank()}) == [{"rank": 0}]
dist.barrier()
print("group of", dist.get_world_size())
"""


def launched(options: Options) -> Report:
    """Start a program by our launcher, without pytest: the group, its collectives and its quiet end."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(_PROGRAM)
        done = subprocess.run(
            [sys.executable, "-m", "composer.cli.main", "-n", "1", str(program), options.device],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    wrong = [word for word in ("Traceback", "destroy_process_group", "Warning") if word in done.stdout]
    right = done.returncode == 0 and "group of 1" in done.stdout and not wrong
    failed = "" if right else f"code {done.returncode}, {wrong}:\n{done.stdout[-3000:]}"
    rows = [["composer -n 1", done.returncode, ", ".join(wrong) or "nothing"]]
    title = "A program under the launcher: collectives, and an end without a word"
    return Report("launched", title, ["program", "code", "complaints"], rows, [], [], {}, failed=failed)


CHECKS: dict[str, Callable[[Options], Report]] = {
    "launched": launched,
    "group": check(
        "group",
        "Collectives, DDP, FSDP2, tensor parallel layers, sharded checkpoints, DeepSpeed, the launcher",
        lambda: {"a group of one": [_FILE]},
        tiny=[f"{_FILE}::test_the_backend"],
    ),
}
SECONDS = {"launched": 30.0, "group": 120.0}
