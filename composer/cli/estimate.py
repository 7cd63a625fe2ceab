"""``composer estimate``: the memory that a training program needs, and what makes it fit on a device."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text
from composer.cli.launch_options import COMMANDS

if TYPE_CHECKING:
    from composer.estimation.grid import Grid
    from composer.estimation.report import Report

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> given = parser.parse_args(["estimate", "--device", "H100-80GB", "train.py", "--lr", "0.1"])
    >>> given.device, given.program
    ('H100-80GB', ['train.py', '--lr', '0.1'])
    """
    command = commands.add_parser(
        "estimate",
        help=COMMANDS["estimate"],
        description="Estimate the peak of memory of a program, what it is made of, and the largest microbatch that "
        "fits; if it does not fit, measure which single change makes it fit. Neither the device nor the processes are "
        "needed, and nothing is computed. The exit code is 0 if the program fits, 1 if it does not or fails, and 2 "
        "if an option is invalid.",
        usage="composer estimate [OPTION ...] SCRIPT [ARGUMENT ...]",
    )
    command.add_argument(
        "--device",
        metavar="NAME",
        help="the device, such as H100-80GB, or the size of its memory, such as 80GB; with --grid several, separated "
        "by commas (default: the accelerator of this machine, else its CPU; with --grid all known devices)",
    )
    command.add_argument(
        "--processes",
        metavar="N",
        help="number of processes (default 1); with --grid several, separated by commas (default 1,8,64)",
    )
    command.add_argument(
        "--local-processes", type=int, metavar="N", help="number of processes on each node (default: at most 8)"
    )
    command.add_argument("--strategy", help="single, ddp, fsdp, hsdp or tp (default: as the program)")
    command.add_argument(
        "--microbatch", type=int, metavar="N", help="samples of a microbatch (default: as the program)"
    )
    command.add_argument("--precision", help="precision, such as amp_bf16 (default: as the program)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change an argument of the Trainer: algorithms+=EMA(), optimizers.fused=True",
    )
    command.add_argument("--grid", action="store_true", help="print a table over devices and numbers of processes")
    command.add_argument(
        "--modules", type=int, default=10, metavar="N", help="number of modules to list activations of (default 10)"
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--folder", help="keep the records of the trials here; the same command again goes on")
    command.add_argument(
        "--fit", type=int, default=1, metavar="N", help="which call of fit of the program is meant (default 1)"
    )
    command.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a script with its arguments, -m MODULE, or train CONFIG.yaml",
    )
    command.set_defaults(run=_estimate)


def _estimate(given: argparse.Namespace) -> None:
    try:
        report = _report(given)
    except ValueError as error:  # of an option; a program that fails is a RuntimeError
        sys.stderr.write(f"composer: {mask_text(error)}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        goes_on = f" The same command with --folder {given.folder} goes on." if given.folder else ""
        sys.stderr.write(f"composer: interrupted; all trials were ended.{goes_on}\n")
        raise SystemExit(130) from None
    if given.json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"{report}\n")
    if not report.ok:
        raise SystemExit(1)


def _report(given: argparse.Namespace) -> Report | Grid:
    from composer.estimation.estimate import estimate
    from composer.estimation.grid import estimate_grid

    arguments: dict[str, Any] = {
        "local_processes": given.local_processes,
        "strategy": given.strategy,
        "microbatch": given.microbatch,
        "precision": given.precision,
        "changes": given.set,
        "folder": given.folder,
        "fit": given.fit,
    }
    if given.grid:
        if given.processes is not None:
            arguments["processes"] = [_number(each) for each in given.processes.split(",")]
        devices = [] if given.device is None else given.device.split(",")
        return estimate_grid(given.program, devices=devices, **arguments)
    processes = 1 if given.processes is None else _number(given.processes)
    return estimate(given.program, device=given.device, processes=processes, modules=given.modules, **arguments)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"--processes must be an integer, or with --grid several separated by commas; got {text!r}."
        ) from None
