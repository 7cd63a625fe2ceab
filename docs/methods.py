"""A page for each method, from its docstring and its declarations."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from composer import algorithms
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from docs.curves import CAPTIONS, method_pictures
from docs.figures import costs
from docs.reference import members, own_names
from docs.text import SECTIONS, as_markdown, papers, prose, section, summary, table

__all__ = ["Method", "bad_company", "method_pages", "method_picture_files", "public_methods"]

_SHARDING = {
    Sharding.SAFE: "the same as in one process",
    Sharding.PER_RANK: "works, with draws of each process",
    Sharding.FULL_WEIGHTS: "with copies of the model only",
}


class Method(NamedTuple):
    """A public method: its class, and where it is."""

    name: str
    cls: type
    module: Any

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{self.module.__name__.rpartition('.')[2]}.md"

    @property
    def declares(self) -> type[Algorithm] | None:
        """The class if it declares how it composes; None for what is used outside of the loop."""
        return self.cls if issubclass(self.cls, Algorithm) else None


@functools.cache
def public_methods() -> list[Method]:
    """Return the methods in the order of their names: the class of each module that is named like it."""
    return sorted(_methods(), key=lambda method: method.name.lower())


def _methods() -> Iterator[Method]:
    for module_name in sorted({getattr(algorithms, name).__module__ for name in algorithms.__all__}):
        if not module_name.startswith("composer.algorithms."):
            continue  # a layer or a table that a module of methods passes on
        module = importlib.import_module(module_name)
        classes = {name: getattr(module, name) for name in own_names(module)}
        wanted = module_name.rpartition(".")[2].replace("_", "")
        for name, cls in classes.items():
            if inspect.isclass(cls) and name.lower() == wanted:
                yield Method(name, cls, module)


def bad_company() -> dict[str, dict[str, str]]:
    """Return what each method composes badly with and why, whichever of the two declares it."""
    found: dict[str, dict[str, str]] = {method.name: {} for method in public_methods()}
    for method in public_methods():
        if method.declares is not None:
            for other, reason in method.declares.__traits__.conflicts_with.items():
                found[method.name][other] = found[other][method.name] = reason
    return found


def method_picture_files() -> dict[str, bytes]:
    """Return the pictures of the pages."""
    return {f"methods/{_picture(name)}": picture for name, picture in method_pictures().items()}


def method_pages() -> dict[str, str]:
    """Return a page for each method, and one that lists them and what they declare."""
    company, measured = bad_company(), costs()
    pages = {f"methods/{method.file}": _page(method, company[method.name], measured) for method in public_methods()}
    return {**pages, "methods/index.md": _index(company)}


def _page(method: Method, company: dict[str, str], measured: dict[str, str]) -> str:
    parts = [f"# {method.name}", prose(method.module)]
    if method.name in CAPTIONS:
        parts.append(f"![{method.name}]({_picture(method.name)})\n\n*{CAPTIONS[method.name]}*")
    parts.append(summary(method.cls))
    for heading in SECTIONS:
        parts.append(f"## {heading}\n\n{section(method.cls, heading)}")
    parts += [f"Measured: {measured[name]}" for name in own_names(method.module) if name in measured]
    parts.append(f"## Beside other methods\n\n{_beside(method, company)}")
    cited = papers(method.module, method.cls)
    if cited:
        parts.append("## Sources\n\n" + "\n".join(f"- <{address}>" for address in cited))
    parts.append(f"## Reference\n\n{members(method.module)}")
    return "\n\n".join(parts) + "\n"


def _beside(method: Method, company: dict[str, str]) -> str:
    """What a method declares, as a table, and what it composes badly with, as a list."""
    files = {each.name: each.file for each in public_methods()}
    lines = [f"- [{other}]({files[other]}): {as_markdown(company[other])}" for other in sorted(company)]
    bad = "It composes badly with\n\n" + "\n".join(lines) if lines else "It is not known to compose badly with any."
    cls = method.declares
    if cls is None:
        return bad
    rows = [
        ("where in the order", _slot(cls)),
        ("what no other may do too, for some arguments", ", ".join(sorted(cls.__traits__.may_claim)) or "nothing"),
        ("shapes of batches change during training", "yes" if cls.__traits__.changes_shapes else "no"),
        ("a checkpoint needs it to be loaded", "yes" if cls.required_on_load() else "no"),
        ("on several processes", f"{_SHARDING[cls.__traits__.sharding]}: {_lower(cls.__traits__.sharding_reason)}"),
    ]
    return f"{table(['', 'declared'], rows)}\n\n{bad}"


def _index(company: dict[str, dict[str, str]]) -> str:
    rows: list[tuple[str, ...]] = []
    files = {method.name: method.file for method in public_methods()}
    for method in public_methods():
        cls, bad = method.declares, company[method.name]
        declared = (
            ("", "", "") if cls is None else (_slot(cls), "yes" if cls.__traits__.changes_shapes else "", _short(cls))
        )
        others = ", ".join(f"[{other}]({files[other]})" for other in sorted(bad))
        rows.append((f"[{method.name}]({method.file})", _idea(method), *declared, others))
    heads = ["method", "what it does", "order", "changes shapes", "several processes", "composes badly with"]
    about = (
        "# Methods\n\nEach is a class for `Trainer(algorithms=[...])` and a plain function in `composer.functional`. "
        "Methods run in the order of their slots (select, augment, label, surgery, precision), and within a slot in "
        "the order in which you give them; at events named `after_*` in the opposite order. Of two that compose badly "
        "a warning tells. This table is made from what the classes declare.\n\n"
    )
    return about + table(heads, rows) + "\n"


def _idea(method: Method) -> str:
    """What the module says first, without the name of the method in front."""
    idea = summary(method.module).partition(": ")[2] or summary(method.module)
    return idea[:1].upper() + idea[1:]


def _slot(cls: type[Algorithm]) -> str:
    return "yours" if cls.__traits__.slot is None else cls.__traits__.slot.name.lower()


def _short(cls: type[Algorithm]) -> str:
    return {"safe": "same", "per_rank": "own draws", "full_weights": "copies only"}[cls.__traits__.sharding]


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _picture(name: str) -> str:
    photographs = {"AugMix", "ColOut", "CutMix", "CutOut", "MixUp", "PatchDropout", "RandAugment"}
    return f"pictures/{name}.{'png' if name in photographs else 'svg'}"
