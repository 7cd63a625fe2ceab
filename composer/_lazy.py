"""Lazy imports: package attributes that are imported on first use (PEP 562), and optional dependencies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

from composer._version import DISTRIBUTION

__all__ = ["MissingConditionalImportError", "attach", "import_extra", "import_object", "is_from_import"]


class MissingConditionalImportError(ImportError):
    """An optional package that the requested feature needs is not installed.

    Args:
        extra_deps_group: The extra of ``composer-torch`` that installs the package.
        conda_package: The name of the missing package.
        conda_channel: Accepted for old callers; names a conda channel to install ``conda_package`` from.
        purpose: What the package is needed for.
        install: The argument of ``pip install`` if no extra installs the package.

    >>> print(MissingConditionalImportError("mlflow", "mlflow", purpose="This"))
    This needs the package 'mlflow', which cannot be imported. Install it with: pip install 'composer-torch[mlflow]'
    """

    def __init__(
        self,
        extra_deps_group: str,
        conda_package: str,
        conda_channel: str | None = None,
        purpose: str = "This feature",
        install: str | None = None,
    ) -> None:
        message = (
            f"{purpose} needs the package {conda_package!r}, which cannot be imported. "
            f"Install it with: pip install '{install or f'{DISTRIBUTION}[{extra_deps_group}]'}'"
        )
        if conda_channel is not None:
            message += f" or: conda install -c {conda_channel} {conda_package}"
        super().__init__(message, name=conda_package)
        # ImportError pickles its `args`; they must be the arguments of this constructor.
        self.args = (extra_deps_group, conda_package, conda_channel, purpose, install)
        self._message = message

    def __str__(self) -> str:
        return self._message


def import_extra(module: str, extra: str, purpose: str, install: str | None = None) -> ModuleType:
    """Import an optional package, or raise an error that says how to install it.

    Args:
        module: Dotted name of the module to import.
        extra: The extra of ``composer-torch`` that installs it.
        purpose: The feature that needs it; the error message starts with this.
        install: The argument of ``pip install`` if no extra installs the package.

    Raises:
        MissingConditionalImportError: The package is not installed. An installed package that fails to import raises
            its original error.

    >>> import_extra("math", "numbers", "The square root").sqrt(9.0)
    3.0
    >>> try:
    ...     import_extra("no_such_package", "nothing", "This example")
    ... except ImportError as error:
    ...     print(str(error)[:51])
    This example needs the package 'no_such_package', w
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        # An installed package with a missing dependency must not be reported as missing.
        if error.name is not None and error.name.partition(".")[0] != root:
            raise
        raise MissingConditionalImportError(extra, root, purpose=purpose, install=install) from error


def import_object(name: str) -> Any:
    """Import an object by name.

    Args:
        name: ``"module:attribute"``, such as ``"torch.optim:SGD"``.

    Raises:
        ValueError: ``name`` has another format.
        ImportError: The module does not exist.
        AttributeError: The module has no such attribute.

    >>> import_object("math:sqrt")(9.0)
    3.0
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"name must be 'module:attribute', such as 'torch.optim:SGD', but got {name!r}.")
    return getattr(importlib.import_module(module), attribute)


def attach(
    package: str,
    members: Mapping[str, str],
    unlisted: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package with lazily imported names (PEP 562).

    Use it as ``__getattr__, __dir__, __all__ = attach(__name__, {...})`` in an ``__init__.py``. A value is the dotted
    module that defines the name. The name refers to the module itself if the module is ``package.name``, or if its last
    component equals the name and it defines no such attribute. ``"module:attribute"`` refers to an attribute with
    another name.

    Args:
        package: The package's ``__name__``.
        members: The module of each public name.
        unlisted: Further names that are accepted but not listed.

    Raises:
        AttributeError: From the returned ``__getattr__``, for a name that is not a member.

    >>> getattr_, dir_, all_ = attach("composer", {"sqrt": "math", "path": "os:path"})
    >>> getattr_("sqrt")(9.0), all_
    (3.0, ['path', 'sqrt'])

    Paper: https://peps.python.org/pep-0562/
    """
    exported = sorted(members)

    def get_member(name: str) -> Any:
        try:
            target = members[name] if name in members else unlisted[name]
        except KeyError:
            caller = sys._getframe(1)
            if caller.f_code.co_name == "_handle_fromlist":
                raise AttributeError(name) from None  # the import system tries a submodule next
            if is_from_import(caller):
                # Python replaces an AttributeError here with "cannot import name" without a hint.
                raise ImportError(_cannot_import(package, name, exported), name=package) from None
            raise AttributeError(_unknown(package, name, exported), name=name) from None
        value = _resolve(package, name, target)
        namespace = sys.modules.get(package)
        if namespace is not None and name in members:
            # Cached, so that the next access is an ordinary attribute lookup.
            setattr(namespace, name, value)
        return value

    def list_members() -> list[str]:
        namespace = sys.modules.get(package)
        return sorted({*exported, *(vars(namespace) if namespace is not None else ())})

    return get_member, list_members, exported


def _resolve(package: str, name: str, target: str) -> Any:
    """Import ``target``, a module or an attribute of one."""
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    if not attribute and module_name.rpartition(".")[2] == name:
        return module if module_name == f"{package}.{name}" else getattr(module, name, module)
    return getattr(module, attribute or name)


def is_from_import(frame: FrameType) -> bool:
    """Return whether a frame is executing ``from package import name``.

    Args:
        frame: The frame of the code that accesses the name.

    >>> is_from_import(sys._getframe())
    False
    """
    import opcode  # only needed for unknown names

    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]


def _cannot_import(package: str, name: str, exported: list[str]) -> str:
    """Return the message of the ImportError for an unknown name, which other packages of the library may have."""
    import importlib.util

    library = importlib.import_module(package.partition(".")[0])
    modules = dict.fromkeys(exported, package)
    for child in () if name.startswith("_") else vars(library).get("__all__", ()):
        other = f"{library.__name__}.{child}"
        if importlib.util.find_spec(other) is not None:
            names: list[str] = vars(importlib.import_module(other)).get("__all__", [])
            modules = {**dict.fromkeys(names, other), **modules}
    return f"cannot import name {name!r} from {package!r}.{_hint(name, exported, modules)}"


def _unknown(package: str, name: str, exported: list[str]) -> str:
    """Return the message of the AttributeError for an unknown name."""
    if name.startswith("__"):  # protocol probes (copy, pickle, doctest) are frequent and never typos
        return f"module {package!r} has no attribute {name!r}"
    return f"module {package!r} has no attribute {name!r}.{_hint(name, exported, dict.fromkeys(exported, package))}"


def _hint(name: str, exported: list[str], modules: Mapping[str, str]) -> str:
    """Return a hint: a class in another package or spelling, a class for another library's name, or a similar one."""
    from composer._compat.name_hints import class_hint, is_foreign_class
    from composer._text import did_you_mean

    hint = class_hint(name, modules)
    return hint if hint or is_foreign_class(name) else did_you_mean(name, exported)
