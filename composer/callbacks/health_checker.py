"""HealthChecker: notice GPUs that are slower than the others, overheat or lose bits."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.request
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from composer import dist
from composer._lazy import import_extra
from composer._text import non_negative, positive
from composer.core.callback import Callback
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["HealthChecker"]

_log = logging.getLogger(__name__)

_SLACK_TIMEOUT = 10.0  # seconds
# NVML's reasons for a low clock that point to the machine, not to the work. The first stands beside the others.
_SLOWDOWNS = {
    "nvmlClocksEventReasonHwSlowdown": "a hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "too much heat",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "the power supply",
}


@dataclass
class _Gpu:
    """One GPU of this machine.

    Attributes:
        index: Its number.
        handle: NVML's.
        utilization: Percent in use, at each sample of the window.
        slowdowns: Bits of the slowdowns seen in the window.
        errors: Uncorrectable memory errors that it had when last looked at, None where it has no such memory.
    """

    index: int
    handle: Any
    utilization: list[float] = field(default_factory=list[float])
    slowdowns: int = 0
    errors: int | None = None


class HealthChecker(Callback):
    """Warns when a GPU of the machine seems to be sick.

    At the end of batches, at most every ``sample_freq`` seconds, the first process of each machine asks the driver of
    its NVIDIA GPUs; the training does not wait for the GPUs. Every ``window_size`` seconds it warns if in the window

    - the mean utilization of some GPU was more than ``threshold`` percentage points below that of another: they do the
      same work, so that one is slow or waits;
    - a GPU had to slow down by itself, for heat or for its power supply;
    - a GPU had memory errors that could not be corrected.

    Each is a :class:`ComposerWarning`, and a message in Slack if there is a webhook for it.

    Needs the extra ``system``. Where the model trains on anything else than an NVIDIA GPU, or the driver does not
    answer, there is a warning and nothing more.

    Args:
        threshold: Difference of utilizations to warn of, in percentage points.
        sample_freq: Seconds between two samples.
        window_size: Seconds between two checks.
        wait: Seconds of training before the first sample, while data is loaded and kernels are compiled.
        slack_webhook_url: Address of an incoming webhook of Slack; by default the value of the environment variable
            ``SLACK_WEBHOOK_URL``, if there is one.
        test_mode: Whether the first check gives an alert in any case, to try out the way it goes.

    Raises:
        TypeError: A number is none.
        ValueError: ``threshold`` or ``wait`` is negative, a time between samples or checks not positive, or the address
            is none of the web.
        MissingConditionalImportError: The model is on an NVIDIA GPU, and nvidia-ml-py is not installed.

    >>> checker = HealthChecker(threshold=15, window_size=300)
    >>> checker.window_size
    300
    """

    def __init__(
        self,
        threshold: float = 10,
        sample_freq: float = 5,
        window_size: float = 120,
        wait: float = 120,
        slack_webhook_url: str | None = None,
        test_mode: bool = False,
    ) -> None:
        self.threshold = non_negative("threshold", threshold)
        self.sample_freq = positive("sample_freq", sample_freq)
        self.window_size = positive("window_size", window_size)
        self.wait = non_negative("wait", wait)
        self.slack_webhook_url = slack_webhook_url or os.environ.get("SLACK_WEBHOOK_URL")
        if self.slack_webhook_url and not self.slack_webhook_url.startswith(("https://", "http://")):
            raise ValueError(f"slack_webhook_url must begin with https://, but got {self.slack_webhook_url!r}.")
        self.test_mode = test_mode
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._next_sample = self._next_check = 0.0
        self._messages: list[threading.Thread] = []

    def init(self, state: State, logger: Logger) -> None:
        self._gpus = []
        if state.device.torch_device.type != "cuda" or torch.version.hip is not None:
            message = f"HealthChecker watches NVIDIA GPUs only; the model trains on {state.device.torch_device}."
            warnings.warn(message, ComposerWarning, stacklevel=2)
        elif dist.get_local_rank() == 0:
            nvml = import_extra("pynvml", "system", "HealthChecker on a GPU")
            number = min(dist.get_local_world_size(), torch.cuda.device_count())
            try:
                nvml.nvmlInit()
                self._gpus = [_Gpu(index, nvml.nvmlDeviceGetHandleByUUID(_uuid(index))) for index in range(number)]
            except nvml.NVMLError as error:
                message = f"HealthChecker can watch nothing, because NVIDIA's driver does not answer: {error}."
                warnings.warn(message, ComposerWarning, stacklevel=2)
            else:
                self._nvml = nvml

    def fit_start(self, state: State, logger: Logger) -> None:
        for gpu in self._gpus:
            gpu.utilization, gpu.slowdowns, gpu.errors = [], 0, self._errors(gpu)
        self._next_sample = time.monotonic() + self.wait
        self._next_check = self._next_sample + self.window_size

    def batch_end(self, state: State, logger: Logger) -> None:
        if not self._gpus:
            return
        now = time.monotonic()
        if now >= self._next_sample:
            self._next_sample = now + self.sample_freq
            for gpu in self._gpus:
                gpu.utilization.append(self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu)
                gpu.slowdowns |= self._slowdowns(gpu)
        if now >= self._next_check and self._gpus[0].utilization:
            self._next_check = now + self.window_size
            for finding in self._findings():
                self._alert(finding, state)

    def close(self, state: State, logger: Logger) -> None:
        for thread in self._messages:
            thread.join(_SLACK_TIMEOUT)
        self._messages.clear()
        self._gpus = []
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _findings(self) -> list[str]:
        """Say what the window shows, and begin a new one."""
        found: list[str] = ["this is the alert that test_mode asks for"] if self.test_mode else []
        self.test_mode = False
        means = {gpu.index: sum(gpu.utilization) / len(gpu.utilization) for gpu in self._gpus}
        if max(means.values()) - min(means.values()) > self.threshold:
            shown = ", ".join(f"GPU {index}: {mean:.0f} %" for index, mean in means.items())
            found.append(f"mean utilizations differ by more than {self.threshold:g} percentage points ({shown})")
        for gpu in self._gpus:
            reasons = [why for name, why in _SLOWDOWNS.items() if gpu.slowdowns & getattr(self._nvml, name)]
            if reasons:
                found.append(f"GPU {gpu.index} slowed itself down: {', '.join(reasons)}")
            before, gpu.errors = gpu.errors, self._errors(gpu)
            if gpu.errors is not None and before is not None and gpu.errors > before:
                found.append(f"GPU {gpu.index} had {gpu.errors - before} memory errors that could not be corrected")
            gpu.utilization, gpu.slowdowns = [], 0
        return found

    def _slowdowns(self, gpu: _Gpu) -> int:
        """Return the bits of why the clock is low now."""
        try:
            return self._nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle)
        except self._nvml.NVMLError_NotSupported:
            return 0

    def _errors(self, gpu: _Gpu) -> int | None:
        """Return the number of memory errors since the driver was loaded that could not be corrected."""
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        try:
            return nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, since)
        except nvml.NVMLError_NotSupported:
            return None

    def _alert(self, finding: str, state: State) -> None:
        text = f"HealthChecker, run {state.run_name}, machine {dist.get_node_rank()}: {finding}."
        warnings.warn(text, ComposerWarning, stacklevel=2)
        if self.slack_webhook_url:
            # The network may be slow, and the step must not wait for it.
            thread = threading.Thread(target=_post, args=(self.slack_webhook_url, text), daemon=True)
            thread.start()
            self._messages = [*(other for other in self._messages if other.is_alive()), thread]


def _uuid(index: int) -> str:
    """Return the name by which NVML knows a device, whose own numbers ignore CUDA_VISIBLE_DEVICES."""
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def _post(url: str, text: str) -> None:
    """Send a message to a webhook of Slack."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SLACK_TIMEOUT):
            pass
    except OSError as error:
        _log.warning("The alert could not be sent to Slack: %s", error)
