"""Weights as safetensors: a file of tensors that other programs read too, and that cannot hold code."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer._lazy import import_extra
from composer.checkpoint.file_format import DamagedCheckpointError, damage_of, replacing

__all__ = ["check_format", "is_safetensors", "read_safetensors", "write_safetensors"]

_SUFFIX = ".safetensors"
# In the header of a file, before the name of a tensor that is not stored because it is another one.
_TIED = "tied:"
# In the header: a checksum of each tensor and of the rest of the header, which the format does not have itself.
_CHECKSUMS = "composer.crc32"


def is_safetensors(path: Path | str) -> bool:
    """Tell whether a name is that of a safetensors file.

    Args:
        path: The name.

    >>> is_safetensors("run/weights.safetensors"), is_safetensors("run/ep1.pt")
    (True, False)
    """
    return Path(path).suffix == _SUFFIX


_COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".lzo", ".lz4", ".zst", ".tar", ".tgz")


def check_format(argument: str, path: Path | str, *, weights_only: bool) -> None:
    """Refuse a compressed file, and a safetensors file for more than weights.

    Args:
        argument: Name of the argument, for the message.
        path: Name of the file.
        weights_only: Whether the file is to have the weights only.

    Raises:
        ValueError: Checkpoints are not written in this format, or it has no room for what is to be saved.

    >>> check_format("filename", "weights.safetensors", weights_only=True)
    """
    if Path(path).suffix in _COMPRESSED:
        raise ValueError(
            f"{argument}={str(path)!r}: checkpoints are not compressed, as weights hardly get smaller. Use '.pt'."
        )
    if is_safetensors(path) and not weights_only:
        raise ValueError(
            f"{argument}={str(path)!r} is a safetensors file, which holds weights and nothing else. Save with "
            f"weights_only=True, or under a name that ends in '.pt'."
        )


def read_safetensors(path: Path | str) -> dict[str, Tensor]:
    """Read weights into host memory; those that were one tensor when they were written are one again.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is cut off, or no safetensors file, or one of ours and not what was written; files
            of other programs have no checksums.
        MissingConditionalImportError: The package safetensors is not installed.

    >>> weight = torch.ones(2)
    >>> write_safetensors({"embedding": weight, "head": weight}, tmp_path / "tied.safetensors")
    >>> read = read_safetensors(tmp_path / "tied.safetensors")
    >>> read["head"] is read["embedding"], read["head"]
    (True, tensor([1., 1.]))
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {str(path)!r}.")
    library: Any = import_extra("safetensors", "safetensors", "A safetensors file")
    try:
        with library.safe_open(path, framework="pt") as file:
            weights: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header: dict[str, str] = file.metadata() or {}
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise DamagedCheckpointError(f"{str(path)!r} cannot be read as a safetensors file: {error}.") from error
    with damage_of(repr(str(path)), "its header"):
        _compare(path, weights, header)
        for name, stored in header.items():
            if name.startswith(_TIED):
                weights[name.removeprefix(_TIED)] = weights[stored]
    return weights


def write_safetensors(
    weights: Mapping[str, Any], path: Path | str, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write weights, whole or not at all.

    Tensors that are one and the same are written once; the header tells which names they have beside. Other tensors
    that overlap in memory are written each.

    Args:
        weights: Tensors by name.
        path: Where to; its folder is made.
        metadata: Further text for the header.

    Raises:
        OSError: It could not be written.
        TypeError: Something among the weights is no tensor.
        MissingConditionalImportError: The package safetensors is not installed.

    >>> write_safetensors({"weight": torch.ones(2)}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    >>> read_safetensors(tmp_path / "a.safetensors")
    {'weight': tensor([1., 1.])}
    """
    errors: Any = import_extra("safetensors", "safetensors", "A safetensors file")
    save_file: Any = import_extra("safetensors.torch", "safetensors", "A safetensors file").save_file
    header = {"format": "pt", **(metadata or {})}
    names: dict[Any, str] = {}
    stored: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"A safetensors file holds tensors, but {name!r} is {type(value).__name__}. Save under a name that "
                f"ends in '.pt', or leave it out with ignore_keys=['state/model/{name}']."
            )
        place = (value.device, value.dtype, value.data_ptr(), value.shape, value.stride())
        if value.numel() and place in names:
            header[_TIED + name] = names[place]
            continue
        names[place] = name
        stored[name] = _alone(value.detach(), taken)
    checksums = {name: _crc32(name, tensor) for name, tensor in stored.items()}
    header[_CHECKSUMS] = json.dumps({"header": _crc32_of_text(header), "tensors": checksums})
    with replacing(path) as temporary:
        try:
            save_file(stored, temporary, metadata=header)
        except errors.SafetensorError as error:
            raise OSError(f"{str(path)!r} could not be written: {error}.") from error
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def _compare(path: Path, weights: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Compare what was read with the checksums in the header, if it has them."""
    if _CHECKSUMS not in header:
        return
    said = json.loads(header[_CHECKSUMS])
    rest = {name: text for name, text in header.items() if name != _CHECKSUMS}
    if said["header"] != _crc32_of_text(rest) or said["tensors"].keys() != weights.keys():
        raise ValueError("it differs from what was written")
    damaged = [repr(name) for name, tensor in weights.items() if _crc32(name, tensor) != said["tensors"][name]]
    if damaged:
        raise DamagedCheckpointError(
            f"{str(path)!r} is damaged: the checksums of {', '.join(damaged)} are not those of what was written."
        )


def _crc32(name: str, tensor: Tensor) -> int:
    """Of a tensor in host memory, its dtype and shape included."""
    value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    content: Any = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return zlib.crc32(content, value)


def _crc32_of_text(header: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(sorted(header.items())).encode())


def _alone(tensor: Tensor, taken: set[int]) -> Tensor:
    """The tensor in memory that has nothing else, as the format wants it."""
    tensor = tensor.to("cpu").contiguous()
    storage = tensor.untyped_storage()
    if storage.data_ptr() in taken or storage.nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    taken.add(tensor.untyped_storage().data_ptr())
    return tensor
