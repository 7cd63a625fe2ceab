"""Find the module that computes something else when it is compiled: each is compiled alone, beside the plain model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from composer import rng, trees
from composer.verification.compare import TOLERANCE, deviation

__all__ = ["CompiledModules"]

# More than the modules of a model that share the code of their forward pass.
_MAX_COMPILATIONS = 10_000


class CompiledModules:
    """Runs a compiled copy of each module on the inputs that the module gets, and compares the outputs.

    A copy has the parameters and buffers of the module before each call, and attributes of its own, so that a number
    that the compiler takes for a constant is found too. Modules are compared in the order in which their calls end, so
    that the innermost is found first.

    Args:
        model: The model, which itself is not compiled.
        config: Arguments of ``torch.compile``.

    Attributes:
        found: Name of the first module whose outputs deviate by more than a relative 1e-6; None if there is none.
        relative: By how much.
        failed: Why modules cannot be compiled alone, by name.

    >>> modules = CompiledModules(model, {"backend": "aot_eager"})  # doctest: +SKIP
    >>> trainer.fit(duration="1ba")  # doctest: +SKIP
    >>> modules.found  # doctest: +SKIP
    'encoder.3.activation'
    """

    def __init__(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        self.found: str | None = None
        self.relative = 0.0
        self.failed: dict[str, str] = {}
        self._config = config
        self._inside = False
        self._copies: dict[str, tuple[nn.Module, Any]] = {}
        self._inputs: list[tuple[Any, Any]] = []
        self._hooks: set[Any] = set()
        for name, module in model.named_modules():
            if not type(module).__module__.startswith("torch.nn.modules.container"):  # without code of their own
                before, after = self._before(name), self._after(name)
                self._hooks |= {before, after}
                module.register_forward_pre_hook(before, with_kwargs=True)
                module.register_forward_hook(after, with_kwargs=True)

    def record(self) -> dict[str, Any]:
        """Return the attributes, in JSON types."""
        return {"found": self.found, "relative": self.relative, "failed": self.failed}

    def _before(self, name: str) -> Any:
        def prepare(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._inside or self.found is not None or name in self.failed:
                return
            self._inputs.append(trees.map_tensors(lambda tensor: tensor.detach().clone(), (args, kwargs)))
            if name not in self._copies:
                self._copies[name] = self._compiled(module)
            twin = self._copies[name][0]
            with torch.no_grad():
                for one, other in zip(_tensors(twin), _tensors(module), strict=True):
                    one.copy_(other)
            for one, other in zip(twin.modules(), module.modules(), strict=True):
                one.training = other.training

        return prepare

    def _compiled(self, module: nn.Module) -> tuple[nn.Module, Any]:
        """Return a copy of a module without the hooks of this object, and the compiled form of it."""
        twin = copy.deepcopy(module)
        for part in twin.modules():
            for hooks in (part._forward_hooks, part._forward_pre_hooks):
                for number in [number for number, hook in hooks.items() if hook in self._hooks]:
                    del hooks[number]
        return twin, torch.compile(twin, **self._config)

    def _after(self, name: str) -> Any:
        def compare(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            del module, args, kwargs
            if self._inside or self.found is not None or name in self.failed or not self._inputs:
                return
            positional, named = self._inputs.pop()
            dynamo: Any = torch._dynamo  # pyright: ignore[reportPrivateUsage]
            self._inside = True
            try:
                with (
                    rng.preserve_rng_state(),
                    torch.compiler.set_stance("default"),
                    dynamo.config.patch(cache_size_limit=_MAX_COMPILATIONS),
                ):
                    found = self._copies[name][1](*positional, **named)
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
                return
            finally:
                self._inside = False
            for one, other in zip(_floats(outputs), _floats(found), strict=False):
                deviates = deviation({name: one}, {name: other}, TOLERANCE)
                if deviates is not None:
                    self.found, self.relative = name, deviates.relative
                    return

        return compare


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _floats(outputs: Any) -> list[Tensor]:
    leaves = [leaf for leaf in trees.leaves(outputs) if isinstance(leaf, Tensor)]
    return [leaf.detach() for leaf in leaves if leaf.is_floating_point()]
