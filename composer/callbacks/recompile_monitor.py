"""RecompileMonitor: count the compilations of torch.compile, and report the reason of each recompilation.

A compiled function is valid under guards, such as the sizes of its inputs. If none of its versions fits a call, it is
compiled again, which may take longer than many steps.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from composer._text import printable
from composer.core.callback import Callback

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["RecompileMonitor"]


class RecompileMonitor(Callback):
    """Counts compilations, and reports each recompilation with the guard that failed.

    The first compilation of a function is no recompilation; one for inputs of other sizes, or for evaluation after
    training, is. Functions are named as in torch's messages; those of regional compilation
    (``compile_config={"regional": True}``) have the class of the block in their names, such as ``Block_0``. Where the
    graph breaks, a model is several functions.

    Logs ``compile/compilations`` and ``compile/recompilations``, numbers of the training and the evaluations of this
    trainer in this process, and ``compile/seconds``, the time of all of them including backward passes, in the steps in
    which they change. What was compiled before, as for an earlier trainer, is not counted. The reason of a
    recompilation is a line on the console, in Python's ``logging`` and in the summary of the run. If there were several
    versions before, it is the guard of one of them, the version that torch tried first; another guard may have failed
    in the version that was meant to fit, and ``TORCH_LOGS=recompiles`` prints those of all. Torch keeps records of 64
    compilations: of more in one step, the last ones are counted.

    Attributes:
        compilations: Number of compilations.
        recompilations: Number of recompilations.
        seconds: Seconds that all of them took.

    >>> RecompileMonitor().recompilations
    0
    """

    def __init__(self) -> None:
        self.compilations, self.recompilations, self.seconds = 0, 0, 0.0
        self._last: Any = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Leave out what was compiled before."""
        self._leave_out()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Leave out what was compiled before; the steps have reported what they compiled."""
        self._leave_out()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Report what the step has compiled."""
        self._report(logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Report what the evaluation has compiled."""
        self._report(logger)

    def _leave_out(self) -> None:
        self._last = next(reversed(_compilations()), None)

    def _report(self, logger: Logger) -> None:
        noted = _compilations()
        if not noted or noted[-1] is self._last:
            return
        new = list(noted)
        for index, one in enumerate(noted):
            if one is self._last:
                new = noted[index + 1 :]
        self._last = noted[-1]
        for one in new:
            self.seconds += (one.duration_us or 0) / 1e6
            if not one.is_forward:
                continue  # the backward pass of a function that was counted
            self.compilations += 1
            if one.recompile_reason is not None:
                self.recompilations += 1
                logger.notice(_line(one))
        logger.log_metrics(
            {
                "compile/compilations": self.compilations,
                "compile/recompilations": self.recompilations,
                "compile/seconds": self.seconds,
            }
        )


def _compilations() -> list[Any]:
    """Return torch's records of the last compilations, 64 unless configured, oldest first."""
    # Without a use of torch.compile it is not imported, which takes a second.
    module: Any = sys.modules.get("torch._dynamo.utils")
    return [] if module is None else module.get_compilation_metrics()


def _line(one: Any) -> str:
    """Return the report of a recompilation: "Block_0 was compiled again, in 1.2 s: ..."."""
    # torch begins with the version whose guard failed: "0/1: tensor 'x' size mismatch ...".
    version, separator, reason = one.recompile_reason.partition(": ")
    reason = reason if separator and "/" in version else one.recompile_reason
    # "0/2" is the third version of function 0.
    earlier = str(one.compile_id).partition("/")[2].partition("_")[0]
    others = f" (one of {earlier} versions; TORCH_LOGS=recompiles shows all)" if earlier not in ("", "0", "1") else ""
    return printable(f"{one.co_name} was compiled again, in {(one.duration_us or 0) / 1e6:.1f} s: {reason}{others}")
