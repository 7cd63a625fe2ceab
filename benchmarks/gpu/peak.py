"""What a device can compute at most: by its data sheet, and by a product of matrices."""

from __future__ import annotations

import time
from typing import Any

import torch

_SIZE, _TINY_SIZE = 8192, 64
_PRODUCTS = 30


def measure(device: str, tiny: bool) -> dict[str, Any]:
    """Return FLOP/s in bfloat16: "sheet", None where the table does not know the device, and "measured".

    Args:
        device: "cuda" or "cpu".
        tiny: Whether matrices are small.
    """
    from composer.callbacks.peak_flops import peak_flops

    size = _TINY_SIZE if tiny else _SIZE
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(one)

    def products() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_PRODUCTS):
            torch.mm(one, other, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    products()
    seconds = min(products() for _ in range(3)) / _PRODUCTS
    sheet = peak_flops(torch.cuda.get_device_name(), "amp_bf16") if device == "cuda" else None
    return {"sheet": sheet, "measured": 2 * size**3 / seconds}
