"""A tensor that tells ``torch.distributed.checkpoint`` of which tensor it is a part."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

__all__ = ["Part"]


class Part(Tensor):
    """What a process holds of a tensor; wherever it lies, beside a mesh of devices or in a copy on the host.

    Attributes:
        whole_shape: Shape of the whole.
        offsets: Where the part begins in it.
    """

    whole_shape: torch.Size
    offsets: torch.Size

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(self.offsets, self.shape)]

    def __create_write_items__(self, fqn: str, object: Part) -> list[WriteItem]:
        data = TensorWriteData(
            chunk=self.__create_chunk_list__()[0],
            properties=TensorProperties(dtype=self.dtype),
            size=self.whole_shape,
        )
        return [WriteItem(MetadataIndex(fqn, self.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.as_subclass(Tensor)
