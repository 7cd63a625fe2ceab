"""Import paths of MosaicML Composer: modules and names that have another home here."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from composer._compat import import_aliases
from composer._compat.import_alias_table import ABSENT, HOMES, PACKAGES, PUBLIC
from tests import apart
from tests.predecessor import FACTS

LINES = [line for line in (FACTS / "homes.txt").read_text().splitlines() if not line.startswith("#")]
ALIASES = [name for name in HOMES if not importlib.util.find_spec(name).has_location]


@pytest.fixture(autouse=True)
def _optional_packages() -> None:
    apart.make_importable()


@pytest.mark.parametrize("line", LINES)
def test_every_module_and_the_names_defined_there(line: str) -> None:
    module, _, names = line.partition(":")
    home = importlib.import_module(module)
    assert importlib.util.find_spec(module).name == module
    assert [name for name in names.split() if not hasattr(home, name)] == []


@pytest.mark.parametrize("name", ALIASES)
def test_no_alias_hides_a_name_of_the_module_that_it_is_imported_from(name: str) -> None:
    """Python makes a module an attribute of the one above it, in place of a function of the same name."""
    parent, _, leaf = name.rpartition(".")
    file = getattr(importlib.import_module(parent), "__file__", None)
    bound = set() if file is None else names_bound(Path(file).read_text())
    assert leaf not in bound


def names_bound(source: str) -> set[str]:
    """The functions, classes and imported names of a module."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def test_the_facts_are_all_there() -> None:
    assert len(LINES) > 200
    assert sum(len(line.split()) - 1 for line in LINES) > 350


@pytest.mark.parametrize("module", HOMES)
def test_each_row_of_the_table_names_what_exists(module: str) -> None:
    assert module.rpartition(".")[0] in PACKAGES or importlib.util.find_spec(module.rpartition(".")[0])
    for entry in HOMES[module].split():
        old, place, attribute = import_aliases._parse(entry)
        if attribute:
            assert getattr(importlib.import_module(module), old) == getattr(importlib.import_module(place), attribute)
        else:
            assert importlib.import_module(entry)


def test_reasons_are_given_for_modules_of_the_table() -> None:
    assert [name for name in ABSENT if name not in HOMES and name.rpartition(".")[0] not in HOMES] == []
    for place in PUBLIC:
        assert importlib.import_module(place)
    # A module without any name says why.
    assert [name for name in ALIASES if not HOMES[name] and name not in ABSENT] == []


# ---------------------------------------------------------------------------------------------------- ways to import


def test_ways_to_import() -> None:
    import composer.algorithms.blurpool.blurpool
    from composer.algorithms.blurpool import blurpool, blurpool_layers

    here = importlib.import_module("composer.algorithms.blurpool")
    assert composer.algorithms.blurpool.blurpool is blurpool
    assert blurpool.BlurPool is here.BlurPool
    assert importlib.import_module("composer.algorithms.blurpool.blurpool_layers") is blurpool_layers
    spec = importlib.util.find_spec("composer.algorithms.blurpool.blurpool_layers")
    assert spec.origin == "composer._compat.import_alias_table"
    assert importlib.util.find_spec("composer.algorithms.blurpool.other") is None
    names: dict[str, object] = {}
    exec("from composer.algorithms.blurpool.blurpool import *", names)
    assert names["BlurPool"] is here.BlurPool
    assert {"BlurPool", "BlurConv2d"} <= set(dir(blurpool))
    assert blurpool.__doc__ == "Alias: moved to composer.algorithms.blurpool, composer.nn.blurpool."


def test_a_module_with_a_file_keeps_it() -> None:
    import composer.devices

    assert inspect.getsourcefile(composer.devices).endswith("devices.py")
    assert "class Device" in inspect.getsource(composer.devices)
    assert composer.devices.__path__ == []
    assert importlib.reload(importlib.import_module("composer.devices.device_mps")).DeviceMPS


def test_metrics_that_only_their_names_are_left_of() -> None:
    from composer.metrics.nlp import InContextLearningLMAccuracy, InContextLearningMetric

    assert InContextLearningLMAccuracy is InContextLearningMetric
    with pytest.raises(RuntimeError, match=r"are in llmfoundry\.eval\.metrics"):
        InContextLearningLMAccuracy(dist_sync_on_step=False)


def test_a_class_that_was_pickled_by_its_older_home() -> None:
    from composer.algorithms import MixUp

    assert pickle.loads(b"ccomposer.algorithms.mixup.mixup\nMixUp\n.") is MixUp
    assert pickle.loads(pickle.dumps(MixUp)) is MixUp


@pytest.mark.parametrize(
    "path",
    [
        "composer.devices.device_cpu.DeviceCPU",
        "composer.optim.scheduler._convert_time",
        "composer.utils.object_store.s3_object_store.S3ObjectStore",
        "composer.trainer.trainer.dist",
        "composer.callbacks.early_stopper.Logger",
    ],
)
def test_patches(path: str) -> None:
    module, _, name = path.rpartition(".")
    before = getattr(importlib.import_module(module), name)
    with mock.patch(path) as double:
        assert getattr(importlib.import_module(module), name) is double
    assert getattr(importlib.import_module(module), name) is before


def test_what_a_module_had_imported_for_itself() -> None:
    import composer
    from composer.callbacks.speed_monitor import State
    from composer.trainer.trainer import TimeUnit, reproducibility

    assert (State, TimeUnit) == (composer.State, composer.TimeUnit)
    assert reproducibility is importlib.import_module("composer.utils.reproducibility")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from composer.devices.device import Devise", "cannot import name 'Devise' .*Did you mean 'Device'"),
        ("from composer.trainer.trainer import Traner", "Did you mean 'Trainer'"),
        ("from composer.utils.compression import get_compressor", "weights hardly compress"),
        ("from composer.utils.fx_utils import replace_op", "torch.fx has passes over graphs"),
        (
            "from composer.trainer.trainer import _readd_fsdp_sync_hooks",
            "Only those private names of MosaicML Composer",
        ),
        ("from composer.callbacks.early_stopper import Foo", "see docs/migrating.md for its names"),
        ("import composer.devices.toaster", "No module named 'composer.devices.toaster'"),
    ],
)
def test_a_name_that_is_not_here(statement: str, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        exec(statement)


def test_an_attribute_that_is_not_here() -> None:
    import composer.devices.device as module

    assert not hasattr(module, "__wrapped__")
    with pytest.raises(AttributeError, match=r"module 'composer.devices.device' has no attribute 'Devise'. Did you"):
        _ = module.Devise


# ---------------------------------------------------------------------------------------------------- cost

_PROBE = """
import sys
import composer
assert "torch" not in sys.modules
import composer.devices.device_cpu, composer.algorithms.mixup.mixup, composer.trainer._scale_schedule
loaded = set(sys.modules)
for name in {aliases}:
    __import__(name)
aliases = {{name for name in set(sys.modules) - loaded}}
print(sorted(name for name in aliases if getattr(sys.modules[name], "__file__", None) and "_older" not in name))
print(sum(type(finder).__name__ == "OlderHomes" for finder in sys.meta_path))
"""


def test_aliases_import_nothing() -> None:
    """Nor does the table cost anything before an older path is asked for."""
    aliases = [name for name in ALIASES if name.startswith(("composer.devices.", "composer.trainer."))]
    code = _PROBE.format(aliases=aliases)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split("\n")[:2] == ["[]", "1"]
    assert not {"importlib.util", "inspect"} & set(vars(import_aliases))


# ---------------------------------------------------------------------------------------------------- functions


def test_functions_with_the_arguments_that_they_had() -> None:
    from composer import State, Time
    from composer.core import Event
    from composer.core.passes import set_filo_order
    from composer.core.precision import Precision, _validate_precision
    from composer.core.state import fsdp_state_dict_type_context
    from composer.devices import DeviceCPU
    from composer.devices.device import _map_batch
    from composer.loss.utils import _one_hot
    from composer.optim.scheduler import _convert_time
    from composer.trainer.trainer import _is_cuda_oom, _scale_max_duration_by_ssr

    assert _map_batch([1, ("a", {"b": 2})], lambda leaf: leaf * 2) == [2, ("aa", {"b": 4})]
    assert _one_hot(torch.tensor([[0, 1]]), num_classes=3, dim=1).tolist() == [[[1, 0], [0, 1], [0, 0]]]
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        _one_hot(torch.tensor([1]), 1)
    with pytest.raises(ValueError, match="integer dtype"):
        _one_hot(torch.ones(1))
    _validate_precision(Precision.FP32, DeviceCPU())
    with pytest.raises(ValueError, match="precision='amp_fp16' does not work on the CPU"):
        _validate_precision(Precision.AMP_FP16, DeviceCPU())
    assert set_filo_order([1, 2], Event.AFTER_LOSS) == [2, 1]
    assert _scale_max_duration_by_ssr(0.5, Time(4, "ep")) == Time(2, "ep")
    assert _is_cuda_oom(RuntimeError("CUDA out of memory"))
    model = nn.Linear(2, 1)
    assert _convert_time("2ba", State(model=model, max_duration="4ba")) == Time(2, "ba")
    for kind in ("full", "sharded"):
        with fsdp_state_dict_type_context(model, kind):
            assert torch.equal(model.state_dict()["weight"], model.weight)
    with pytest.raises(NotImplementedError, match="'full' or 'sharded', but got 'local'"):
        fsdp_state_dict_type_context(model, "local").__enter__()
