"""Generate a page for each method from its docstring and declared traits, and the table of all methods."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from composer import algorithms
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from docs.choosing import CHOICES, DOMAINS
from docs.curves import CAPTIONS, method_pictures
from docs.figures import costs, evidence
from docs.reference import members, own_names
from docs.text import SECTIONS, as_markdown, papers, prose, section, summary, table

__all__ = [
    "CONDITIONS",
    "Method",
    "conflicts",
    "method_files",
    "method_pages",
    "method_picture_files",
    "public_methods",
]

# Pairs that conflict for some arguments only.
CONDITIONS: dict[tuple[str, str], str] = {
    ("CutMix", "LabelSmoothing"): "only with `interpolate_loss=True`",
    ("MixUp", "LabelSmoothing"): "only with `interpolate_loss=True`",
    ("Alibi", "SeqLengthWarmup"): "unless `train_sequence_length_scaling=1`",
    ("StochasticDepth", "SAM"): 'unless `stochastic_method="sample"`',
}


_EFFECTS = (
    "Alone, added to a baseline with a tuned learning rate, in pairs of runs with the same seed; intervals of 95 %. "
    "These are small models on one CPU thread: `composer explore` measures the same on yours. "
    "[How it was measured](../benchmarks.md#what-each-method-does-by-itself)."
)


class Method(NamedTuple):
    """A public method: its class and module."""

    name: str
    cls: type
    module: Any

    @property
    def file(self) -> str:
        """The file name of its page."""
        return f"{self.module.__name__.rpartition('.')[2]}.md"

    @property
    def declares(self) -> type[Algorithm] | None:
        """The class if it is an algorithm; None for what is used outside of the training loop."""
        return self.cls if issubclass(self.cls, Algorithm) else None


@functools.cache
def public_methods() -> list[Method]:
    """Return the methods by name: the class of each module that has the name of the module."""
    return sorted(_methods(), key=lambda method: method.name.lower())


def _methods() -> Iterator[Method]:
    for module_name in sorted({getattr(algorithms, name).__module__ for name in algorithms.__all__}):
        if not module_name.startswith("composer.algorithms."):
            continue  # a layer or a table that a method module re-exports
        module = importlib.import_module(module_name)
        classes = {name: getattr(module, name) for name in own_names(module)}
        wanted = module_name.rpartition(".")[2].replace("_", "")
        for name, cls in classes.items():
            if inspect.isclass(cls) and name.lower() == wanted:
                yield Method(name, cls, module)


def conflicts() -> dict[str, dict[str, str]]:
    """Return the conflicts of each method with their reasons, whichever of the two declares them."""
    found: dict[str, dict[str, str]] = {method.name: {} for method in public_methods()}
    for method in public_methods():
        if method.declares is not None:
            for other, reason in method.declares.__traits__.conflicts_with.items():
                found[method.name][other] = found[other][method.name] = reason
    return found


def method_picture_files() -> dict[str, bytes]:
    """Return the pictures of the method pages."""
    return {f"methods/{_picture(name)}": picture for name, picture in method_pictures().items()}


def method_files() -> dict[str, str]:
    """Return the file name of each method's page."""
    return {method.name: method.file for method in public_methods()}


def method_pages() -> dict[str, str]:
    """Return a page for each method, and one that lists them by domain."""
    pairs, measured, effects = conflicts(), costs(), evidence()
    pages = {
        f"methods/{method.file}": _page(method, pairs[method.name], measured, effects.get(method.name, []))
        for method in public_methods()
    }
    return {**pages, "methods/index.md": _index(pairs)}


def _page(method: Method, own_conflicts: dict[str, str], measured: dict[str, str], effects: list[str]) -> str:
    parts = [f"# {method.name}", prose(method.module)]
    if method.name in CAPTIONS:
        parts.append(f"![{method.name}]({_picture(method.name)})\n\n*{CAPTIONS[method.name]}*")
    parts.append(summary(method.cls))
    for heading in SECTIONS:
        parts.append(f"## {heading}\n\n{section(method.cls, heading)}")
    parts += [f"Measured: {measured[name]}" for name in own_names(method.module) if name in measured]
    if effects:
        parts.append("## Measured effect\n\n" + _EFFECTS + "\n\n" + "\n".join(f"- {one}" for one in effects))
    parts.append(f"## Combining with other methods\n\n{_combining(method, own_conflicts)}")
    cited = papers(method.module, method.cls)
    if cited:
        parts.append("## Sources\n\n" + "\n".join(f"- <{address}>" for address in cited))
    parts.append(f"## Reference\n\n{members(method.module)}")
    return "\n\n".join(parts) + "\n"


def _combining(method: Method, own_conflicts: dict[str, str]) -> str:
    """What a method declares, as a table, and the methods that it conflicts with, as a list."""
    files = method_files()
    lines = [
        f"- [{other}]({files[other]}){_condition(method.name, other)}: {as_markdown(own_conflicts[other])}"
        for other in sorted(own_conflicts)
    ]
    shown = "Conflicts with\n\n" + "\n".join(lines) if lines else "No known conflicts."
    cls = method.declares
    if cls is None:
        return shown
    claims = ", ".join(sorted(cls.__traits__.may_claim)) or "nothing"
    rows = [
        ("order (slot)", _slot(cls)),
        ("exclusive use, for some arguments", claims),
        ("changes the shape of batches during training", _changed_shapes(cls)),
        ("required when loading a checkpoint", "yes" if cls.required_on_load() else "no"),
        ("distributed training", f"{_distributed(cls)}: {_lower(cls.__traits__.sharding_reason)}"),
    ]
    return f"{table(['property', 'value'], rows)}\n\n{shown}"


def _changed_shapes(cls: type[Algorithm]) -> str:
    """Whether a method changes the shapes of batches, and which dimensions are dynamic in a compiled model."""
    dims = cls.__traits__.dynamic_dims
    if not dims:
        return "yes" if cls.__traits__.changes_shapes else "no"
    what = f"dimensions {' and '.join(map(str, dims))} are" if len(dims) > 1 else f"dimension {dims[0]} is"
    return f"yes; {what} dynamic in a compiled model"


def _condition(name: str, other: str) -> str:
    """When two methods conflict, in brackets, if it depends on their arguments."""
    condition = CONDITIONS.get((name, other)) or CONDITIONS.get((other, name))
    return f" ({condition})" if condition else ""


def _index(pairs: dict[str, dict[str, str]]) -> str:
    files = method_files()
    heads = ["method", "what it does", "order", "changes shapes", "distributed training", "conflicts with"]
    parts = [
        "# All methods",
        "Each method is a class for `Trainer(algorithms=[...])` and a function in `composer.functional`. [Choosing "
        "methods](../choosing_methods.md) compares their effect on speed and accuracy.",
        "Methods run in the order of their slots (select, augment, label, surgery, precision), and within a slot in "
        "the order in which you pass them; at events named `after_*` in reverse order. Conflicting methods raise a "
        "warning. The column on distributed training says whether a run on several ranks gives the `same` result as on "
        "one rank, uses `per-rank` random values, or works with `DDP only`, because the method needs unsharded "
        "parameters.",
    ]
    for domain, title in DOMAINS.items():
        rows: list[tuple[str, ...]] = []
        for method in public_methods():
            cls = method.declares
            if CHOICES[method.name].domain != domain:
                continue
            declared = ("", "", "")
            if cls is not None:
                declared = (_slot(cls), "yes" if cls.__traits__.changes_shapes else "no", _distributed(cls))
            others = ", ".join(
                f"[{other}]({files[other]}){_condition(method.name, other)}" for other in sorted(pairs[method.name])
            )
            link = f"[{method.name}]({method.file})"
            rows.append((link, _idea(method), *declared, others))
        parts += [f"## {title}", table(heads, rows)]
    return "\n\n".join(parts) + "\n"


def _idea(method: Method) -> str:
    """The summary of the module without the name of the method."""
    idea = summary(method.module).partition(": ")[2] or summary(method.module)
    return idea[:1].upper() + idea[1:]


def _slot(cls: type[Algorithm]) -> str:
    return "as passed" if cls.__traits__.slot is None else cls.__traits__.slot.name.lower()


def _distributed(cls: type[Algorithm]) -> str:
    sharding = cls.__traits__.sharding
    if not sharding.supports_sharded_weights:
        return "DDP only"
    return "per-rank" if sharding is Sharding.PER_RANK else "same"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _picture(name: str) -> str:
    photographs = {"AugMix", "ColOut", "CutMix", "CutOut", "MixUp", "PatchDropout", "RandAugment"}
    return f"pictures/{name}.{'png' if name in photographs else 'svg'}"
