"""``composer estimate``: the memory that a training program needs, and what makes it fit on a device."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from composer.cli.program_command import add_program_options, add_program_parser, print_report, target_of
from composer.cli.usage import running_trials

if TYPE_CHECKING:
    from composer.estimation.grid import Grid
    from composer.estimation.report import Report
    from composer.trials.target import Target

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["estimate"].parse(["--device", "H100-80GB", "train.py", "--lr", "0.1"])
    >>> given.device, given.program
    ('H100-80GB', ['train.py', '--lr', '0.1'])
    """
    command = add_program_parser(
        commands,
        "estimate",
        "Estimate the peak memory of a training script, what it consists of, and the largest microbatch that fits; if "
        "the script may not fit, measure which single change makes it fit. Neither the device nor the other processes "
        "are needed, and nothing is computed.",
        "0 if the script fits, 1 if it may not fit, does not fit or fails, 2 if the command line is wrong.",
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
    command.add_argument(
        "--strategy",
        metavar="NAME",
        help="single, ddp, fsdp, hsdp or tp; with --grid several, separated by commas (default: as the program)",
    )
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
    add_program_options(command)
    command.set_defaults(run=_estimate)


def _estimate(given: argparse.Namespace) -> None:
    target = target_of(given)
    with running_trials(given.folder):
        report = _report(given, target)
    print_report(report, given.json)


def _report(given: argparse.Namespace, target: Target) -> Report | Grid:
    from composer.estimation.estimate import estimate
    from composer.estimation.grid import estimate_grid

    arguments: dict[str, Any] = {
        "local_processes": given.local_processes,
        "strategy": given.strategy,
        "microbatch": given.microbatch,
        "precision": given.precision,
        "changes": given.set,
        "folder": given.folder,
    }
    if given.grid:
        if given.processes is not None:
            arguments["processes"] = [_number(each) for each in given.processes.split(",")]
        if given.strategy is not None:
            arguments["strategy"] = [each.strip() for each in given.strategy.split(",")]
        devices = [] if given.device is None else given.device.split(",")
        return estimate_grid(target, devices=devices, **arguments)
    for option in ("device", "strategy"):
        if "," in (getattr(given, option) or ""):
            raise ValueError(f"--{option} takes several values with --grid only; got {getattr(given, option)!r}.")
    processes = 1 if given.processes is None else _number(given.processes)
    return estimate(target, device=given.device, processes=processes, modules=given.modules, **arguments)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"--processes must be an integer, or with --grid several separated by commas; got {text!r}."
        ) from None
