"""Targets: the training program of a trial: a script, a module or a function that creates a Trainer and trains."""

from __future__ import annotations

import base64
import builtins
import contextlib
import hashlib
import importlib
import pickle
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal

from composer._lazy import import_extra
from composer._secrets.masking import mask_values
from composer._text import did_you_mean
from composer.trainer.fit_calls import begin_program

__all__ = ["Target"]

# Words that stand for a module of this package, as in `composer train run.yaml`.
_MODULES = {"train": "composer.hparams"}


@dataclass(frozen=True)
class Target:
    """A program that creates a :class:`.Trainer` and calls ``fit``, in a form that another process can run.

    Args:
        kind: "script" (a path), "module" (a module name, as for ``python -m``), "function" (an import path such as
            ``package.module:function``) or "pickle" (a pickled function). A function returns a trainer that is not
            fitted yet, and takes no arguments.
        name: The path, name or pickle.
        arguments: Command-line arguments of a script or module; for a function those that it finds in ``sys.argv``.
        fit: Which call of ``fit`` of the program is meant, from 1. The calls before it are shortened like it.

    Raises:
        ValueError: ``fit`` is less than 1.

    >>> Target.from_command(["-m", "timeit", "--number", "1"])
    Target(kind='module', name='timeit', arguments=('--number', '1'), fit=1)
    """

    kind: Literal["script", "module", "function", "pickle"]
    name: str
    arguments: tuple[str, ...] = ()
    fit: int = 1

    def __post_init__(self) -> None:
        if self.fit < 1:
            raise ValueError(f"fit must be at least 1, for the first call of fit; got {self.fit}.")

    @classmethod
    def of(cls, program: Callable[[], Any] | Target | Sequence[str], fit: int = 1) -> Target:
        """Return the target of a program in any form in which functions of this package take one.

        Args:
            program: A function that returns a trainer, a command line, or a target, which is returned as it is.
            fit: Which call of ``fit`` is meant.

        Raises:
            TypeError: It is something else, such as a string: whether that is one word or several is not known.
            ValueError: No script is given.
            FileNotFoundError: The script or module does not exist.

        >>> Target.of(["train", "run.yaml"]).name
        'composer.hparams'
        """
        if isinstance(program, Target):
            return program
        if isinstance(program, str):
            raise TypeError(f"program must be a list of words such as ['train.py', '--lr', '0.1']; got {program!r}.")
        if callable(program):
            return cls.from_function(program, fit)
        if not isinstance(program, Sequence) or not all(isinstance(word, str) for word in program):
            raise TypeError(f"program must be a function or a list of words such as ['train.py']; got {program!r}.")
        return cls.from_command(program, fit)

    @classmethod
    def from_command(cls, words: Sequence[str], fit: int = 1) -> Target:
        """Return the target of a command line.

        Args:
            words: A script with its arguments, ``-m`` with a module and its arguments, or ``train`` with a YAML file.
            fit: Which call of ``fit`` is meant.

        Raises:
            ValueError: No script is given.
            FileNotFoundError: The script or module does not exist.

        >>> Target.from_command(["train", "run.yaml"])
        Target(kind='module', name='composer.hparams', arguments=('run.yaml',), fit=1)
        """
        words = list(words)
        if words[:1] == ["-m"]:
            words = words[1:]
            kind: Literal["script", "module"] = "module"
        elif words and words[0] in _MODULES and not Path(words[0]).exists():
            words[0] = _MODULES[words[0]]
            kind = "module"
        else:
            kind = "script"
        if not words:
            what = (
                "module was given: name it after -m" if kind == "module" else "script was given: name the script to run"
            )
            raise ValueError(f"No {what}, and its arguments after it.")
        target = cls(kind, words[0], tuple(words[1:]), fit)
        target.check_exists()
        return target

    @classmethod
    def from_function(cls, function: Callable[[], Any], fit: int = 1) -> Target:
        """Return the target of a function that returns a trainer.

        Functions of importable modules are imported again; others, as those of a notebook, are pickled. They find the
        command-line arguments of the script that runs now.

        Args:
            function: Takes no arguments, and returns a :class:`.Trainer` that is not fitted yet.
            fit: Which call of ``fit`` is meant.

        Raises:
            TypeError: It is not a function.
            MissingConditionalImportError: The function must be pickled, and ``cloudpickle`` is not installed.

        >>> import textwrap
        >>> Target.from_function(textwrap.dedent).name
        'textwrap:dedent'
        """
        if not callable(function):
            raise TypeError(
                f"make_trainer must be a function that returns a Trainer which is not fitted yet, so that it can be "
                f"called again in other processes; got {function!r}."
            )
        if _is_importable(function):
            return cls("function", f"{function.__module__}:{function.__qualname__}", _own_arguments(), fit)
        pickler = import_extra("cloudpickle", "trials", "A function that cannot be imported by other processes")
        return cls("pickle", base64.b64encode(pickler.dumps(function)).decode(), _own_arguments(), fit)

    def check_exists(self) -> None:
        """Raise if the script or module does not exist.

        Raises:
            FileNotFoundError: It does not.
        """
        if self.kind == "script" and not Path(self.name).is_file():
            path = Path(self.name)
            if path.is_dir():
                raise FileNotFoundError(f"{self.name!r} is a folder. Name the script to run.")
            found = path.parent.iterdir() if path.parent.is_dir() else ()
            hint = did_you_mean(self.name, [str(one) for one in found if one.suffix == ".py"])
            raise FileNotFoundError(f"There is no script {self.name!r}.{hint}")
        if self.kind == "module":
            top = self.name.partition(".")[0]
            if top not in sys.modules and PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
                names = [
                    one.stem for one in Path.cwd().iterdir() if one.suffix == ".py" or (one / "__init__.py").exists()
                ]
                raise FileNotFoundError(f"There is no module {top!r}.{did_you_mean(top, names)}")

    @property
    def command(self) -> str:
        """The words that name the program on a command line, with secrets masked; the name of a function."""
        if self.kind in ("function", "pickle"):
            return self.name if self.kind == "function" else "a function"
        return shlex.join([*(["-m"] if self.kind == "module" else []), *mask_values([self.name, *self.arguments])])

    @property
    def fingerprint(self) -> str:
        """A hash of the target, and of the script and the small files that its arguments name, such as configurations.

        Modules that the program imports are found when it runs; see ``sources`` of :class:`.Record`.
        """
        digest = hashlib.sha256(repr(self).encode())
        names = (self.name, *self.arguments) if self.kind == "script" else self.arguments
        for name in names:
            with contextlib.suppress(OSError, ValueError):  # an argument may be any text, too long for a name
                path = Path(name.rpartition("=")[2])  # as in --config=run.yaml
                if path.is_file() and path.stat().st_size < 2**20:  # arguments may name data
                    digest.update(path.read_bytes())
        return digest.hexdigest()

    def run(self) -> None:
        """Run the program in this process, as ``python`` would."""
        begin_program()
        if self.kind == "script":
            sys.argv[:] = [self.name, *self.arguments]
            sys.path.insert(0, str(Path(self.name).resolve().parent))  # of the file itself, if this is a link to it
            _run_script(str(Path(self.name).absolute()))
        elif self.kind == "module":
            sys.argv[:] = [self.name, *self.arguments]
            sys.path.insert(0, "")
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            sys.argv[1:] = self.arguments
            trainer = self._function()()
            if not callable(getattr(trainer, "fit", None)):
                raise TypeError(
                    f"make_trainer must return a Trainer which is not fitted yet; it returned {type(trainer).__name__}."
                )
            for _ in range(self.fit):
                trainer.fit()

    def _function(self) -> Callable[[], Any]:
        if self.kind == "pickle":
            return pickle.loads(base64.b64decode(self.name))  # our own parent process wrote it
        module, _, path = self.name.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found


def _run_script(path: str) -> None:
    """Run a script as the main module; unlike ``runpy.run_path``, leave ``sys.argv[0]`` as it was written."""
    loader = SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    module, main = ModuleType("__main__"), sys.modules["__main__"]
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    finally:
        sys.modules["__main__"] = main


def _own_arguments() -> tuple[str, ...]:
    """Return the command-line arguments of the script that this process runs; those of a notebook's kernel are none."""
    return tuple(sys.argv[1:]) if hasattr(sys.modules["__main__"], "__file__") else ()


def _is_importable(function: Callable[[], Any]) -> bool:
    """Return whether another process finds a function by its module and name."""
    if not isinstance(function, FunctionType) or function.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
