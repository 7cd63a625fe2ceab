"""The commands that take a training program, on a program that trains on the device."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.gpu.options import Options
from benchmarks.report import Report

_PROGRAM = Path(__file__).with_name("commands_program.py")
_COMPOSER = (sys.executable, "-m", "composer.cli.main")
# What each is given, in the order in which they run: the later ones read the run that the first one leaves.
_COMMANDS: dict[str, tuple[str, ...]] = {
    "train": (sys.executable, "PROGRAM", "--save-folder", "run"),
    "replay": (*_COMPOSER, "replay", "run", "--step", "21"),
    "estimate": (*_COMPOSER, "estimate", "PROGRAM"),
    "verify": (*_COMPOSER, "verify", "PROGRAM"),
    "doctor": (*_COMPOSER, "doctor", "PROGRAM"),
    "explore": (
        *(*_COMPOSER, "explore", "--target", "MulticlassAccuracy>=0.9", "--confirm", "ChannelsLast", "--pairs", "6"),
        *("--budget", "2m", "PROGRAM"),
    ),
}
_LINES = 40  # of the output of a command
_MARGIN = 10.0  # seconds in which a command that is stopped ends, and the report is written


def measure(options: Options) -> Report:
    """Run each command; those that end with another code than 0 have failed.

    Args:
        options: The device and the time.

    Raises:
        SkipError: In tiny form: the suite runs these commands on the CPU.
    """
    options.need_gpu()
    end = time.monotonic() + options.seconds - _MARGIN
    rows, notes, failed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, command in _COMMANDS.items():
            begin = time.monotonic()
            print(f"{name} ...", flush=True)  # what ran last, if the check does not end
            code, text = _run([_filled(word) for word in command], folder, end - begin)
            rows.append([name, time.monotonic() - begin, code])
            last = "\n".join(text.splitlines()[-_LINES:])
            notes.append(f"{name}:\n{last}")
            failed += [] if code == 0 else [f"{name} ended with {code}:\n{last}"]
    return Report(
        "commands",
        "Commands on a program that trains on the device",
        ["command", "seconds", "exit code"],
        rows,
        [],
        notes,
        {},
        failed="\n\n".join(failed),
    )


def _filled(word: str) -> str:
    return str(_PROGRAM) if word == "PROGRAM" else word


def _run(command: list[str], folder: str, seconds: float) -> tuple[int, str]:
    """Run a command; its code is 124 if the time was over."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        text, _ = begun.communicate(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        begun.terminate()
        try:
            text, _ = begun.communicate(timeout=_MARGIN / 2)
        except subprocess.TimeoutExpired:
            begun.kill()
            text, _ = begun.communicate()
        return 124, text
    return begun.returncode, text
