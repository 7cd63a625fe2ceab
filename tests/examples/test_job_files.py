"""The job files are ones that what they are for takes, by its own validators."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "distributed"
TOOLS = Path(sys.executable).parent


def checked(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_kubernetes() -> None:
    told = checked(TOOLS / "kubernetes-validate", FOLDER / "kubernetes.yaml")
    assert re.findall(r"passed for resource (\w+)/digits", told) == ["service", "job"]


def test_slurm() -> None:
    checked(TOOLS / "shellcheck", "--severity=info", FOLDER / "slurm.sbatch")


def test_slurm_starts_one_launcher_a_node(tmp_path: Path) -> None:
    """Run the script with stand-ins for the commands of the scheduler, which say what they were asked for."""
    tools = {
        "scontrol": 'echo "$SLURM_FIRST"; echo other',
        "srun": 'shift; exec "$@"',
        "composer": 'printf "%s\\n" "$@"',
    }
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_FIRST": "node-a",
        "SLURM_JOB_ID": "30007",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sbatch"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    words = done.stdout.split()
    given = dict(zip(words[0::2], words[1::2], strict=False))
    assert given["-n"] == "8"
    assert (given["--world_size"], given["--node_rank"]) == ("16", "1")
    assert (given["--master_addr"], given["--master_port"]) == ("node-a", "30007")
