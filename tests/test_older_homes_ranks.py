"""Functions of MosaicML Composer on a sharded model."""

from __future__ import annotations

from tests.ranks import Ranks


def unsharded():
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from composer import dist
    from composer.core.state import fsdp_state_dict_type_context

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model)
    with fsdp_state_dict_type_context(model, "sharded"):
        assert all(isinstance(value, DTensor) for value in model.state_dict().values())
    with fsdp_state_dict_type_context(model):
        found = model.state_dict()
    assert all(isinstance(value, DTensor) for value in model.state_dict().values())
    same = all(torch.equal(found[name], whole[name]) for name in found)
    return dist.get_global_rank(), sorted(found), same


def test_full_state_is_on_rank_zero(two_ranks: Ranks) -> None:
    names = ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert two_ranks.run(unsharded) == [(0, names, True), (1, [], True)]
