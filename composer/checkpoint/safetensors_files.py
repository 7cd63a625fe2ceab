"""Read and write weights as safetensors: tensor files that other programs read too, and that cannot contain code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer._lazy import import_extra
from composer.checkpoint.checksum import fast_crc32
from composer.checkpoint.file_format import DamagedCheckpointError, damage_of, replacing

__all__ = ["check_format", "is_safetensors", "read_safetensors", "write_safetensors"]

_SUFFIX = ".safetensors"
# Prefix, in the header, of the name of a tied tensor that is not stored again.
_TIED = "tied:"
# Header entry with checksums of each tensor and of the header, which the format itself lacks.
_CHECKSUMS = "composer.crc32"


def is_safetensors(path: Path | str) -> bool:
    """Return whether a name is that of a safetensors file.

    Args:
        path: The name.

    >>> is_safetensors("run/weights.safetensors"), is_safetensors("run/ep1.pt")
    (True, False)
    """
    return Path(path).suffix == _SUFFIX


_COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".lzo", ".lz4", ".zst", ".tar", ".tgz")


def check_format(argument: str, path: Path | str, *, weights_only: bool) -> None:
    """Raise for a compressed file, and for a safetensors file of more than weights.

    Args:
        argument: Name of the argument, for the message.
        path: Name of the file.
        weights_only: Whether only the weights are saved.

    Raises:
        ValueError: The format is not supported, or cannot store the checkpoint.

    >>> check_format("filename", "weights.safetensors", weights_only=True)
    """
    if Path(path).suffix in _COMPRESSED:
        raise ValueError(
            f"{argument}={str(path)!r}: compression is not supported, since weights hardly get smaller. Use '.pt'."
        )
    if is_safetensors(path) and not weights_only:
        raise ValueError(
            f"{argument}={str(path)!r} is a safetensors file, which can only store weights. Use "
            f"weights_only=True, or a name that ends in '.pt'."
        )


def read_safetensors(path: Path | str) -> dict[str, Tensor]:
    """Read weights into host memory; tied weights are tied again.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: The file does not exist.
        DamagedCheckpointError: It is truncated, not a safetensors file, or does not match the checksums that this
            library writes; files of other programs have no checksums.
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
    """Write weights atomically.

    Tied weights are written once; the header has their other names. Other tensors that overlap in memory are written
    separately.

    Args:
        weights: Tensors by name.
        path: The destination; its folder is created.
        metadata: Further strings for the header.

    Raises:
        OSError: The file could not be written.
        TypeError: A weight is not a tensor.
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
    storages: set[int] = set()
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"A safetensors file can only store tensors, but {name!r} is {type(value).__name__}. Use a name that "
                f"ends in '.pt', or exclude it with ignore_keys=['state/model/{name}']."
            )
        memory = (value.device, value.dtype, value.data_ptr(), value.shape, value.stride())
        if value.numel() and memory in names:
            header[_TIED + name] = names[memory]
            continue
        names[memory] = name
        stored[name] = _alone(value.detach(), storages)
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
    """Verify the weights by the checksums in the header, if it has them."""
    if _CHECKSUMS not in header:
        return
    expected = json.loads(header[_CHECKSUMS])
    rest = {name: text for name, text in header.items() if name != _CHECKSUMS}
    if expected["header"] != _crc32_of_text(rest) or expected["tensors"].keys() != weights.keys():
        raise ValueError("its checksum does not match")
    damaged = [repr(name) for name, tensor in weights.items() if _crc32(name, tensor) != expected["tensors"][name]]
    if damaged:
        raise DamagedCheckpointError(f"{str(path)!r} is damaged: the checksums of {', '.join(damaged)} do not match.")


def _crc32(name: str, tensor: Tensor) -> int:
    """Return the checksum of a tensor in host memory, including dtype and shape."""
    value = fast_crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    content: Any = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return fast_crc32(content, value)


def _crc32_of_text(header: Mapping[str, str]) -> int:
    return fast_crc32(json.dumps(sorted(header.items())).encode())


def _alone(tensor: Tensor, storages: set[int]) -> Tensor:
    """Return the tensor in a separate storage, as the format requires."""
    tensor = tensor.to("cpu").contiguous()
    storage = tensor.untyped_storage()
    if storage.data_ptr() in storages or storage.nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storages.add(tensor.untyped_storage().data_ptr())
    return tensor
