"""How many planted faults ``composer verify`` finds and names, and how many sound trainers it reports by mistake.

``python -m tests.verification.measure`` runs all checks on all of them, which takes about half an hour on 2 cores;
``faults`` or ``sound`` runs one half, and names of faults or numbers of sound trainers only these.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

from composer.trials import ForkServer
from composer.verification.findings import Report
from tests.verification import sound
from tests.verification.fault import Fault
from tests.verification.faults import FAULTS
from tests.verification.running import PRELOADED, run_checks

__all__ = ["is_named", "main"]

_SOUND = 200


def is_named(fault: Fault, report: Report) -> bool:
    """Return whether a report has a fault's cause, or one of those that are as right, as a failure or a difference.

    Args:
        fault: The fault.
        report: The report of its trainer.
    """
    return any(finding.cause in fault.causes for finding in report.findings if finding.status in ("failed", "expected"))


def main(words: Sequence[str]) -> int:
    """Measure, and print a line for each trainer and the totals; return the number of wrong reports.

    Args:
        words: "faults", "sound", names of faults and numbers of sound trainers; none for all.
    """
    faults = [name for name in FAULTS if not words or "faults" in words or name in words]
    numbers = [number for number in range(_SOUND) if not words or "sound" in words or str(number) in words]
    wrong, seconds = 0, list[float]()
    with ForkServer(PRELOADED) as server:
        for name in [*faults, *numbers]:
            begin = time.monotonic()
            path = f"faults:{name}" if isinstance(name, str) else f"sound:case_{name}"
            report = run_checks(f"tests.verification.{path}", server, fresh=True)
            seconds.append(time.monotonic() - begin)
            right = is_named(FAULTS[name], report) if isinstance(name, str) else report.ok
            wrong += not right
            what = sorted(report.causes) if isinstance(name, str) else sound.describe(name)
            print(f"{'right' if right else 'WRONG'}  {seconds[-1]:5.1f} s  {name}: {what}", flush=True)
    total = f"{len(faults)} faults and {len(numbers)} sound trainers"
    print(f"{wrong} wrong reports of {total}; a report takes {statistics.median(seconds):.1f} s (median)")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
