"""HealthChecker: warn about GPUs that are slower than the others, throttle, overheat or have ECC memory errors."""

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
from composer._numbers import non_negative, positive
from composer.core.callback import Callback
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["HealthChecker"]

_log = logging.getLogger(__name__)

_SLACK_TIMEOUT = 10.0  # seconds
# NVML's reasons for a low clock that point to the hardware, not to the load. The first may be set with the others.
_THROTTLE_REASONS = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "overheating",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power supply",
}


@dataclass
class _Gpu:
    """One GPU of this node.

    Attributes:
        index: Its CUDA device index.
        handle: Its NVML handle.
        utilization: Utilization in percent, at each sample of the window.
        throttle_reasons: Bits of the throttle reasons seen in the window.
        errors: Number of uncorrectable memory errors at the last check; None if the memory has no ECC.
    """

    index: int
    handle: Any
    utilization: list[float] = field(default_factory=list[float])
    throttle_reasons: int = 0
    errors: int | None = None


class HealthChecker(Callback):
    """Warns when a GPU of a node appears to be unhealthy.

    At the end of batches, at most every ``sample_freq`` seconds, local rank 0 of each node queries the driver of the
    node's NVIDIA GPUs; training does not wait for the GPUs. Every ``window_size`` seconds it warns if in the window

    - the mean utilization of a GPU was more than ``threshold`` percentage points below that of another: they do the
      same work, so one of them is slow or waits;
    - a GPU throttled because of heat or its power supply;
    - a GPU had uncorrectable memory errors.

    Each finding is a :class:`ComposerWarning`, and a Slack message if a webhook is set.

    Requires the extra ``system``. If the model does not train on an NVIDIA GPU, or the driver does not respond, the
    callback warns once and does nothing else.

    Args:
        threshold: Difference in utilization to warn about, in percentage points.
        sample_freq: Seconds between two samples.
        window_size: Seconds between two checks.
        wait: Seconds of training before the first sample, while data is loaded and kernels are compiled.
        slack_webhook_url: URL of a Slack incoming webhook; defaults to the environment variable
            ``SLACK_WEBHOOK_URL``, if it is set.
        test_mode: Always send an alert at the first check, to test delivery.

    Raises:
        TypeError: A numeric argument is not a number.
        ValueError: ``threshold`` or ``wait`` is negative, ``sample_freq`` or ``window_size`` is not positive, or the
            webhook is not an HTTP URL.
        MissingConditionalImportError: The model is on an NVIDIA GPU, and nvidia-ml-py is not installed.

    >>> checker = HealthChecker(threshold=15, window_size=300)
    >>> checker.window_size
    300
    """

    writes_output = True

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
            raise ValueError(f"slack_webhook_url must begin with https:// or http://; got {self.slack_webhook_url!r}.")
        self.test_mode = test_mode
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._next_sample = self._next_check = 0.0
        self._messages: list[threading.Thread] = []

    def init(self, state: State, logger: Logger) -> None:
        self._gpus = []
        if state.device.torch_device.type != "cuda" or torch.version.hip is not None:
            message = f"HealthChecker supports NVIDIA GPUs only; the model trains on {state.device.torch_device}."
            warnings.warn(message, ComposerWarning, stacklevel=2)
        elif dist.get_local_rank() == 0:
            nvml = import_extra("pynvml", "system", "HealthChecker on a GPU")
            number = min(dist.get_local_world_size(), torch.cuda.device_count())
            try:
                nvml.nvmlInit()
                self._gpus = [_Gpu(index, nvml.nvmlDeviceGetHandleByUUID(_uuid(index))) for index in range(number)]
            except nvml.NVMLError as error:
                message = f"HealthChecker is disabled because the NVIDIA driver does not respond: {error}."
                warnings.warn(message, ComposerWarning, stacklevel=2)
            else:
                self._nvml = nvml

    def fit_start(self, state: State, logger: Logger) -> None:
        for gpu in self._gpus:
            gpu.utilization, gpu.throttle_reasons, gpu.errors = [], 0, self._errors(gpu)
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
                gpu.throttle_reasons |= self._throttle_reasons(gpu)
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
        """Return the findings of the window, and begin a new one."""
        found: list[str] = ["this is the alert requested by test_mode"] if self.test_mode else []
        self.test_mode = False
        means = {gpu.index: sum(gpu.utilization) / len(gpu.utilization) for gpu in self._gpus}
        if max(means.values()) - min(means.values()) > self.threshold:
            shown = ", ".join(f"GPU {index}: {mean:.0f} %" for index, mean in means.items())
            found.append(f"mean utilizations differ by more than {self.threshold:g} percentage points ({shown})")
        for gpu in self._gpus:
            bits = gpu.throttle_reasons
            reasons = [why for name, why in _THROTTLE_REASONS.items() if bits & getattr(self._nvml, name)]
            if reasons:
                found.append(f"GPU {gpu.index} throttled: {', '.join(reasons)}")
            before, gpu.errors = gpu.errors, self._errors(gpu)
            if gpu.errors is not None and before is not None and gpu.errors > before:
                found.append(f"GPU {gpu.index} had {gpu.errors - before} uncorrectable memory errors")
            gpu.utilization, gpu.throttle_reasons = [], 0
        return found

    def _throttle_reasons(self, gpu: _Gpu) -> int:
        """Return the bits of NVML's current reasons for a low clock."""
        try:
            return self._nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle)
        except self._nvml.NVMLError_NotSupported:
            return 0

    def _errors(self, gpu: _Gpu) -> int | None:
        """Return the number of uncorrectable memory errors since the driver was loaded."""
        nvml = self._nvml
        error_type, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        try:
            return nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, error_type, counter)
        except nvml.NVMLError_NotSupported:
            return None

    def _alert(self, finding: str, state: State) -> None:
        text = f"HealthChecker, run {state.run_name}, node {dist.get_node_rank()}: {finding}."
        warnings.warn(text, ComposerWarning, stacklevel=2)
        if self.slack_webhook_url:
            # The network may be slow, and the step must not wait for it.
            thread = threading.Thread(target=_post, args=(self.slack_webhook_url, text), daemon=True)
            thread.start()
            self._messages = [*(other for other in self._messages if other.is_alive()), thread]


def _uuid(index: int) -> str:
    """Return the UUID of a device for NVML, whose indices ignore CUDA_VISIBLE_DEVICES."""
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def _post(url: str, text: str) -> None:
    """Send a message to a Slack webhook."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SLACK_TIMEOUT):
            pass
    except OSError as error:
        _log.warning("The alert could not be sent to Slack: %s", error)
