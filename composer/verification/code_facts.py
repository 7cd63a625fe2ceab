"""Facts about the code of a run: which objects use clocks, generators, addresses or files."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from typing import Any

from composer.core.state import State
from composer.verification.digests import attributes, is_generator
from composer.verification.objects import is_of_library, is_own, name_of

__all__ = [
    "edits_in_place",
    "generators_of",
    "global_variables",
    "own_states",
    "samples",
    "seeds_itself",
    "suspects",
    "uses_clock",
    "writes",
]

_CLOCK = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "now", "today", "utcnow"})
_RANDOM = frozenset(
    {
        "urandom",
        "SystemRandom",
        "Random",
        "default_rng",
        "RandomState",
        "Generator",
        "seed",
        "manual_seed",
        "secrets",
        "uuid4",
    }
    | {"token_bytes", "randbits"}
)
# What makes or seeds a generator.
_SEEDS = frozenset({"Generator", "manual_seed", "default_rng", "RandomState", "Random", "seed_all"})
_ORDER = frozenset({"id", "hash", "set", "frozenset", "Thread", "ThreadPoolExecutor"})
# Files, processes and networks; and names of the clients of trackers.
_OUTPUT = frozenset(
    {
        "open",
        "Path",
        "write",
        "write_text",
        "write_bytes",
        "save",
        "mkdir",
        "makedirs",
        "dump",
        "savefig",
        "to_csv",
        "os",
    }
    | {"shutil", "subprocess", "socket", "requests", "urlopen", "httpx", "post", "put", "Client", "connect", "upload"}
)


def suspects(state: State) -> dict[str, list[str]]:
    """Return the names that the code of each custom object uses of clocks, generators, addresses and threads.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> suspects(State(model=torch.nn.Linear(1, 1)))
    {}
    """
    found: dict[str, list[str]] = {}
    for name, part in _objects(state):
        names = sorted(_names(part) & (_CLOCK | _RANDOM | _ORDER))
        if generators_of(part) and not samples(names):
            names.append("Generator")
        if names:
            found[name] = names
    return found


def uses_clock(names: Sequence[str]) -> bool:
    """Return whether names of :func:`suspects` include a clock.

    Args:
        names: The names of one object.

    >>> uses_clock(["perf_counter"])
    True
    """
    return bool(_CLOCK.intersection(names))


def samples(names: Sequence[str]) -> bool:
    """Return whether names of :func:`suspects` include a generator of random numbers.

    Args:
        names: The names of one object.

    >>> samples(["default_rng"])
    True
    """
    return bool(_RANDOM.intersection(names))


def seeds_itself(part: Any, method: str) -> bool:
    """Return whether a method of an object makes or seeds a generator, itself or in a method of its class.

    Args:
        part: The object.
        method: Name of the method.

    >>> seeds_itself(1, "batch_start")
    False
    """
    own = {function.__name__: _code_names(function.__code__) for function in _functions(part)}
    names = own.get(method, set[str]())
    names = names.union(*(own[name] for name in names if name in own))
    return bool(names & _SEEDS) or {"random", "seed"} <= names


def generators_of(part: Any) -> list[Any]:
    """Return the generators of random numbers that an object has, or that its code uses as global variables.

    Args:
        part: The object.

    >>> generators_of(1)
    []
    """
    held = [] if isinstance(part, type) else list(attributes(part).values())
    return [value for value in (*held, *global_variables(part).values()) if is_generator(value)]


def global_variables(part: Any) -> dict[str, Any]:
    """Return the global variables of the program that the code of an object uses, by name.

    Modules, classes and functions are left out, but for functions that keep what they have returned.

    Args:
        part: The object.

    >>> global_variables(1)
    {}
    """
    found: dict[str, Any] = {}
    for function in _called(part):
        for name in sorted(_code_names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            if not isinstance(value, types.ModuleType | type) and (not callable(value) or hasattr(value, "cache_info")):
                found[name] = value
    return found


def edits_in_place(state: State) -> list[str]:
    """Return the class names of custom objects with in-place operations: ``x += y``, ``x.add_(y)``, ``x[i] = y``.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> edits_in_place(State(model=torch.nn.Linear(1, 1)))
    []
    """
    found: list[str] = []
    for _, part in _objects(state):
        codes = [function.__code__ for function in _functions(part) if function.__name__ != "__init__"]
        if any(_has_in_place(code) for code in codes):
            found.append(name_of(part))
    return list(dict.fromkeys(found))


def _has_in_place(code: types.CodeType) -> bool:
    methods = any(name.endswith("_") and not name.endswith("__") for name in code.co_names)
    operations = ("STORE_SUBSCR", "STORE_SLICE")
    return methods or any(
        each.opname in operations or (each.opname == "BINARY_OP" and "=" in each.argrepr)
        for each in dis.get_instructions(code)
    )


def own_states(state: State) -> list[str]:
    """Return the class names of the objects whose state for a checkpoint is computed by code of the program.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> own_states(State(model=torch.nn.Linear(1, 1)))
    []
    """
    methods = {"state_dict", "get_extra_state"}
    found = [type(part) for _, part in _objects(state) if methods & {each.__name__ for each in _functions(part)}]
    return list(dict.fromkeys(cls.__qualname__ for cls in found))


def writes(entry: Any) -> bool:
    """Return whether the code of an object may write files or use the network, as far as its names tell.

    Args:
        entry: The object, of a class of the program.

    >>> writes(1)
    False
    """
    return bool(_names(entry) & _OUTPUT)


def _objects(state: State) -> Iterator[tuple[str, Any]]:
    """Yield the objects that take part in training, with their names."""
    for name, module in state.model.named_modules():
        yield f"module {name}", module
    for role in ("algorithms", "callbacks", "optimizers", "schedulers"):
        for entry in getattr(state, role):
            yield f"{role.removesuffix('s').replace('scheduler', 'schedule')} {name_of(entry)}", entry
    spec = state.train_phase.loader
    loader = getattr(spec, "dataloader", None)
    parts = [("loader", loader)]
    parts += [(name, getattr(loader, name, None)) for name in ("dataset", "sampler", "batch_sampler", "collate_fn")]
    parts += [
        (name, getattr(spec, name, None)) for name in ("batch_transforms", "microbatch_transforms", "split_batch")
    ]
    dataset = getattr(loader, "dataset", None)
    parts += [(f"dataset.{name}", value) for name, value in getattr(dataset, "__dict__", {}).items() if callable(value)]
    for name, part in parts:
        if part is not None:
            yield f"data {name}", part


def _names(part: Any) -> set[str]:
    """Return the names that the code of an object refers to, with the functions of its module that it calls."""
    return {name for function in _called(part) for name in _code_names(function.__code__)}


def _called(part: Any) -> list[types.FunctionType]:
    """Return the functions of an object, with the functions of their modules that they call."""
    found = _functions(part)
    for function in list(found):
        for name in _code_names(function.__code__):
            called = function.__globals__.get(name)
            called = getattr(called, "__wrapped__", called)
            if isinstance(called, types.FunctionType) and called.__module__ == function.__module__:
                found.append(called)
    return found


def _functions(part: Any) -> list[types.FunctionType]:
    """Return the functions of the program that an object consists of: its methods, and functions that it has."""
    functions: list[Any] = [part] if isinstance(part, types.FunctionType) else []
    for cls in type(part).__mro__:
        if not is_of_library(cls.__module__):
            functions += [value for value in vars(cls).values() if isinstance(value, types.FunctionType)]
    functions += [v for v in getattr(part, "__dict__", {}).values() if isinstance(v, types.FunctionType)]
    return [function for function in functions if is_own(function)]


def _code_names(code: types.CodeType) -> set[str]:
    """Return the global names and attributes of code, with those of functions inside it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _code_names(constant)
    return found
