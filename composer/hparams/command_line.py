"""Parse the command line of a training program: YAML files, ``--name value`` overrides, ``--help``."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from composer._secrets.masking import mask_text, mask_values
from composer.hparams._yaml import dump
from composer.hparams.build import check, make_trainer
from composer.hparams.class_paths import find, full_path, short_names
from composer.hparams.config_calls import parser_of
from composer.hparams.config_tree import ConfigError, Tree, expanded, is_call, merged, parse_value, read, with_value
from composer.trainer import Trainer

__all__ = ["exit_with_error", "trainer_from_args"]

_USAGE = """\
usage: {program} [CONFIG.yaml ...] [--NAME VALUE ...] [--print_config] [--help [CLASS]]

Each CONFIG.yaml (also --config CONFIG.yaml) has arguments of the trainer. Later files override earlier ones, and
--NAME VALUE overrides all files. Dotted names set arguments of objects: --model.width 64,
--algorithms.MixUp.alpha 0.3, --callbacks.0.window_size 10; --algorithms+ EMA adds one.

  --print_config   print the configuration including all defaults, and exit
  --help CLASS     show the arguments of a class, by name or import path; --help model: of the configured class

The arguments of the trainer:
"""


@dataclass
class _Command:
    """A parsed command line."""

    tree: Tree = field(default_factory=dict[str, Any])
    print_config: bool = False
    help_of: str | None = None


def trainer_from_args(
    arguments: Sequence[str] | None = None, *, defaults: Mapping[str, Any] | str | Path | None = None, **given: Any
) -> Trainer:
    """Return the trainer of YAML files and command-line options.

    The command line has file names, and ``--name value`` for any argument of the trainer and of objects among its
    arguments; ``--help`` and ``--print_config`` print and exit. An invalid configuration prints an error in one line
    and exits with code 2. See :func:`.trainer_from_config` for the contents of the files.

    Args:
        arguments: The command-line arguments after the program name; None uses ``sys.argv``.
        defaults: A YAML file or its content, which the command line overrides.
        **given: Arguments of the trainer that the program creates itself.

    Raises:
        SystemExit: Help was printed, or the configuration is invalid.
        MissingConditionalImportError: The packages of ``composer-torch[hparams]`` are not installed.

    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> arguments = ["--max_duration", "5ep", "--optimizers", "AdamW", "--optimizers.lr=1e-3"]
    >>> trainer = trainer_from_args(arguments, model=model, progress_bar=False)
    >>> trainer.state.max_duration, trainer.state.optimizers[0].param_groups[0]["lr"]
    (Time(5, TimeUnit.EPOCH), 0.001)
    """
    try:
        command = _parse(sys.argv[1:] if arguments is None else arguments, _of_program(defaults))
        if command.help_of is not None:
            _leave_with(_help(command.help_of, command.tree))
        call = check(command.tree, given)
        if command.print_config:
            _leave_with(dump(mask_values(call.tree())))
        return make_trainer(call, given)
    except ConfigError as error:
        exit_with_error(error)


def exit_with_error(error: object) -> NoReturn:
    """Print the error of a configuration, and exit with code 2.

    Args:
        error: The error.

    Raises:
        SystemExit: Always.

    >>> exit_with_error("max_duration must be given.")
    Traceback (most recent call last):
    SystemExit: 2
    """
    print(f"{_program()}: error: {mask_text(error)}", file=sys.stderr)  # noqa: T201 - this is for programs
    raise SystemExit(2)


def _of_program(defaults: Mapping[str, Any] | str | Path | None) -> Tree:
    if defaults is None:
        return {}
    return expanded(defaults if isinstance(defaults, Mapping) else read(defaults))


def _parse(arguments: Sequence[str], tree: Tree) -> _Command:
    """Parse a command line, and apply it to the defaults."""
    command, rest = _Command(tree), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if word in ("-h", "--help"):
            command.help_of = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        elif name == "--help":
            command.help_of = value
        elif word == "--print_config":
            command.print_config = True
        elif name.startswith("--") and key.endswith(".help"):
            named = value or (rest.pop(0) if rest and not rest[0].startswith("-") else "")
            command.help_of = named or key.removesuffix(".help")
        elif name.startswith("--"):
            if not equals:
                if not rest:
                    raise ConfigError("", f"--{key} requires a value.")
                value = rest.pop(0)
            command.tree = _applied(command.tree, key, value)
        elif word.startswith("-"):
            raise ConfigError("", f"unknown option {word!r}; give arguments of the trainer as --name value.")
        else:
            command.tree = merged(command.tree, expanded(read(word)))
    return command


def _applied(tree: Tree, key: str, text: str) -> Tree:
    """Return the configuration with an option applied."""
    if key == "config":
        return merged(tree, expanded(read(text)))
    try:
        value = parse_value(text)
    except ConfigError as error:
        raise ConfigError(f"--{key}", error) from None
    name = key.removesuffix("+")
    return expanded(with_value(tree, name, value, append=name != key))


def _help(name: str, tree: Tree) -> str:
    """Return the help text of a class, of the class configured under a name, or of the program."""
    if not name:
        known = "".join(f"\n{text}:\n{_listed(package)}" for text, package in _LISTED.items())
        return _USAGE.format(program=_program()) + _arguments(Trainer) + known
    chosen: Any = tree
    for part in name.split("."):
        chosen = chosen.get(part) if isinstance(chosen, Mapping) else None
    if is_call(chosen):
        name = chosen["class_path"]
    try:
        path = full_path(name)
        target = find(path)
    except ValueError as error:
        raise ConfigError("--help", error) from None
    return f"{path}\n\n{_arguments(target)}"


_LISTED = {
    "Algorithms": "composer.algorithms.",
    "Callbacks": "composer.callbacks.",
    "Loggers": "composer.loggers.",
    "Models": "composer.models.",
    "Data": "composer.datasets.",
    "Optimizers and schedules": "composer.optim.",
    "Optimizers of torch": "torch.optim.",
}


def _listed(package: str) -> str:
    paths = {name: path for name, path in short_names().items() if path.startswith(package)}
    names = [name for name, path in paths.items() if name[:1].isupper() and path == f"{package}{name}"]
    return textwrap.fill(", ".join(sorted(names)), 118, initial_indent="  ", subsequent_indent="  ") + "\n"


def _arguments(target: Callable[..., Any]) -> str:
    """Return the help text of the arguments of a class or function."""
    parser = parser_of(target)
    _, _, text = parser.format_help().partition("\n\n")
    # Remove the options that jsonargparse adds, and its lists of subclasses, which are longer than the rest.
    text = re.sub(r"^options:\n(?:  .*\n)*\n?", "", text, flags=re.M)
    text = re.sub(r"^  --\S+\.help.*\n(?: {10,}.*\n)*", "", text, flags=re.M)
    text = re.sub(r",\s+known\s+subclasses:[^)]*\)", ")", text)
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"\1", text)
    return re.sub(r"Unvalidated<([^>]*)>", r"\1", text).replace("``", "")


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "composer train" if name == "__main__.py" else name


def _leave_with(text: str) -> NoReturn:
    print(text, end="")  # noqa: T201 - this is for programs
    raise SystemExit(0)
