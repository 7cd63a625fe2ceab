"""Read, merge and compare configurations: nested dictionaries in which objects are ``{class_path, init_args}``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from composer._lazy import import_extra
from composer._secrets.masking import MASK, is_masked, mask_text, mask_values
from composer._secrets.names import secrecy_of
from composer._text import did_you_mean, first_of
from composer.hparams.class_paths import full_path

__all__ = [
    "OBJECTS",
    "ConfigError",
    "Tree",
    "changes",
    "check_not_masked",
    "expanded",
    "is_call",
    "merged",
    "parse_value",
    "read",
    "shown",
    "with_value",
]

Tree: TypeAlias = dict[str, Any]

# Arguments of the trainer that are objects, so that a string is a class name.
OBJECTS: Final = frozenset({"algorithms", "callbacks", "loggers", "model", "optimizers", "profiler", "schedulers"})
_LOADERS: Final = frozenset({"eval_dataloader", "train_dataloader"})

# Limits: bytes of a file, and components of a location.
_LARGEST: Final = 10_000_000
_DEEPEST: Final = 100
_LONGEST: Final = 10_000  # bits of a number, about 3000 digits

# Names whose values are masked because of neighboring values, rather than because of their name.
_LISTS: Final = frozenset({"args", "argv", "headers", "keys", "tokens", "value"})
_CALL: Final = ("class_path", "args", "init_args")


class ConfigError(ValueError):
    """A configuration is invalid.

    Args:
        where: The location: names and numbers separated by dots; "" for the entire configuration.
        what: The problem and the remedy.

    >>> print(ConfigError("algorithms.0", "unknown class 'MixUpp'."))
    algorithms.0: unknown class 'MixUpp'.
    """

    def __init__(self, where: str, what: object) -> None:
        super().__init__(where, what)  # the arguments from which pickle recreates it
        self.where = where

    def __str__(self) -> str:
        return ": ".join(str(part) for part in self.args if part)


def is_call(node: object) -> bool:
    """Return whether a node of a configuration describes an object.

    Args:
        node: The node.

    >>> is_call({"class_path": "torch.nn.Identity"}), is_call({"lr": 0.1})
    (True, False)
    """
    return isinstance(node, Mapping) and "class_path" in node


def parse_value(text: str) -> Any:
    """Parse YAML.

    Args:
        text: The YAML text.

    Raises:
        ConfigError: It is not valid YAML.

    >>> parse_value("0.1"), parse_value("1e-4"), parse_value("2ep"), parse_value("[EMA, MixUp]")
    (0.1, 0.0001, '2ep', ['EMA', 'MixUp'])
    """
    from composer.hparams._yaml import load

    yaml = import_extra("yaml", "hparams", "A configuration")
    try:
        return load(text)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:  # e.g. of `!!int x`, `!!bool x`
        # Without the line itself, which may contain a secret.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        # In `api_key: *abc` and `api_key: !abc` the name is part of a secret.
        problem = re.sub(r"((?:undefined|duplicate) (?:alias|anchor)|for the tag|tag handle) .*", r"\1", str(problem))
        raise ConfigError("", f"invalid YAML: {mask_text(problem)}{where}") from None


def read(path: str | Path) -> Tree:
    """Read a configuration from a YAML file.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, is not valid YAML, or is not a mapping.

    >>> _ = (tmp_path / "run.yaml").write_text("max_duration: 2ep")
    >>> read(tmp_path / "run.yaml")
    {'max_duration': '2ep'}
    """
    try:
        if (size := Path(path).stat().st_size) > _LARGEST:
            raise ConfigError("", f"the configuration has {size:,} bytes; the limit is {_LARGEST:,}.")
        content = parse_value(Path(path).read_text(encoding="utf-8"))
    except (OSError, ConfigError, UnicodeError) as error:
        raise ConfigError(str(path), getattr(error, "strerror", None) or error) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(str(path), "a configuration must be a mapping of trainer arguments to values.")
    return cast(Tree, content)


def expanded(tree: Mapping[str, Any]) -> Tree:
    """Return a configuration with each object in full form: ``{class_path, init_args}``, with the full import path.

    For arguments that are objects, ``EMA`` is short for ``{class_path: EMA}`` and ``MixUp: {alpha: 0.2}`` for
    ``{class_path: MixUp, init_args: {alpha: 0.2}}``.

    Args:
        tree: The arguments of the trainer.

    Raises:
        ConfigError: A class does not exist, or an object is not valid.

    >>> expanded({"algorithms": ["EMA", {"MixUp": {"alpha": 0.2}}]})["algorithms"][1]
    {'class_path': 'composer.algorithms.MixUp', 'init_args': {'alpha': 0.2}}
    """
    _check_plain(tree, "", 0)
    return {
        name: _objects(value, name) if name in OBJECTS | _LOADERS else _expanded_value(value, name)
        for name, value in tree.items()
    }


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Raise on values nested too deep or in themselves, numbers too large to print, and argument names not strings."""
    if depth > _DEEPEST:
        raise ConfigError(f"{where[:40]}...", f"it is nested more than {_DEEPEST} levels deep, or contains itself.")
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        raise ConfigError(where, "the number has too many digits.")
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        for key, entry in entries.items():
            if not isinstance(key, str) and (depth == 0 or where.endswith("init_args")):
                raise ConfigError(
                    where, f"argument names must be strings; got {key!r} ({type(key).__name__}); quote it."
                )
            _check_plain(entry, f"{where}.{key}" if where else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(cast("Sequence[Any]", value)):
            _check_plain(entry, f"{where}.{index}", depth + 1)


def _objects(value: Any, where: str) -> Any:
    """Return the full form of a value where objects are expected."""
    if isinstance(value, list):
        return [_objects(entry, f"{where}.{index}") for index, entry in enumerate(cast("list[Any]", value))]
    if isinstance(value, str):
        return _call({"class_path": value}, where)
    if isinstance(value, Mapping) and not is_call(value) and where.partition(".")[0] not in _LOADERS:
        entries = cast("Mapping[str, Any]", value)
        if len(entries) != 1:
            raise ConfigError(
                where,
                f"an object is 'Name', 'Name: {{argument: value}}' or has a class_path; got {first_of(list(entries))}.",
            )
        ((name, arguments),) = entries.items()
        return _call({"class_path": name, "init_args": arguments}, where)
    return _expanded_value(value, where)


def _expanded_value(value: Any, where: str) -> Any:
    """Return the full form of any other value."""
    if is_call(value):
        return _call(value, where)
    if isinstance(value, Mapping):
        return {
            key: _expanded_value(entry, f"{where}.{key}") for key, entry in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, (list, tuple)):
        return [_expanded_value(entry, f"{where}.{index}") for index, entry in enumerate(cast("Sequence[Any]", value))]
    return value


def _call(node: Mapping[str, Any], where: str) -> Tree:
    for key in node:
        if key not in _CALL:
            raise ConfigError(
                where,
                f"an object has class_path, init_args and args, but not {key!r}; "
                f"put its arguments into init_args.{did_you_mean(key, _CALL)}",
            )
    path, arguments, positional = node["class_path"], node.get("init_args") or {}, node.get("args") or []
    if not isinstance(path, str) or not isinstance(arguments, Mapping) or not isinstance(positional, list):
        raise ConfigError(where, "class_path must be a string, init_args a mapping, and args a list.")
    try:
        path = full_path(path)
    except ValueError as error:
        raise ConfigError(where, error) from None
    made: Tree = {"class_path": path}
    if positional:
        made["args"] = _expanded_value(positional, f"{where}.args")
    made["init_args"] = _expanded_value(arguments, where)
    return made


def merged(tree: Any, over: Any) -> Any:
    """Merge a configuration into another one; lists, and objects of another class, are replaced.

    Args:
        tree: The base configuration.
        over: The configuration that overrides it.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"c": 3}, "d": [4]})
    {'a': {'b': 1, 'c': 3}, 'd': [4]}
    """
    if not (isinstance(tree, Mapping) and isinstance(over, Mapping)):
        return over
    if is_call(over) and tree.get("class_path") != over["class_path"]:
        return over
    values = cast("Mapping[str, Any]", over).items()
    return {**tree, **{key: merged(tree[key], value) if key in tree else value for key, value in values}}


def with_value(tree: Tree, key: str, value: Any, append: bool = False) -> Tree:
    """Return a configuration with one value set.

    Args:
        tree: The configuration, with objects in full form.
        key: The location: names separated by dots. Entries of a list are given by index or, for objects, by class name;
            ``init_args`` may be omitted.
        value: The value.
        append: Whether to append it to the list at that location.

    Raises:
        ConfigError: The list has no such entry, or the location is inside a plain value.

    >>> tree = expanded({"algorithms": ["EMA", {"MixUp": {"alpha": 0.2}}]})
    >>> with_value(tree, "algorithms.MixUp.alpha", 0.3)["algorithms"][1]["init_args"]
    {'alpha': 0.3}
    >>> with_value({"tags": "a"}, "tags", "b", append=True)
    {'tags': ['a', 'b']}
    """
    parts = key.split(".")
    if len(parts) > _DEEPEST:
        raise ConfigError(f"{key[:40]}...", f"a dotted name has at most {_DEEPEST} components.")
    return _with_value(tree, parts, value, append, key)


def _with_value(node: Any, rest: list[str], value: Any, append: bool, key: str) -> Any:
    if not rest:
        if not append:
            return value
        entries = [] if node is None else node if isinstance(node, list) else [node]
        return [*entries, *(value if isinstance(value, list) else [value])]
    part, below = rest[0], rest[1:]
    if isinstance(node, list):
        entries = list(cast("list[Any]", node))
        index = _list_index(entries, part, key)
        entries[index] = _with_value(entries[index], below, value, append, key)
        return entries
    if is_call(node) and part not in _CALL:
        part, below = "init_args", rest
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(key, f"the value {shown(key, node)} has no {part!r}.")
    inner: Tree = dict(cast("Mapping[str, Any]", node or {}))
    inner[part] = _with_value(inner.get(part), below, value, append, key)
    return inner


def shown(name: str, value: object) -> str:
    """Return a value as text for a message, masked if its name indicates a secret.

    Args:
        name: Its name, or its location in a configuration.
        value: The value.

    >>> shown("seed", "x"), shown("loggers.0.api_key", "abc")
    ("'x'", "'***'")
    """
    parts = name.split(".")
    named = next((part for part in parts if secrecy_of(part)), parts[-1])
    return repr(mask_values({named: value})[named])


def check_not_masked(tree: Tree) -> None:
    """Raise if secrets in a configuration were masked when it was saved, and have not been given again.

    Args:
        tree: The configuration.

    Raises:
        ConfigError: There are masked secrets; the error lists the locations.

    >>> check_not_masked({"loggers": {"class_path": "Tracker", "init_args": {"api_key": "***"}}})
    Traceback (most recent call last):
    composer.hparams.config_tree.ConfigError: loggers.api_key: the secret was masked when ...
    """
    found = list(_masked(tree, ""))
    if found:
        raise ConfigError(
            ", ".join(found),
            f"the secret was masked when this configuration was saved. Pass it again, for example with --{found[0]} "
            f"VALUE on the command line, or remove the argument if an environment variable sets it.",
        )


def _masked(node: Any, where: str) -> Iterator[str]:
    """Yield the locations of masked values."""
    if isinstance(node, (list, Mapping)):
        many = cast("list[Any] | Mapping[str, Any]", node)
        for name, entry in enumerate(many) if isinstance(many, list) else many.items():
            is_between = name == "init_args" and is_call(node)
            yield from _masked(entry, where if is_between else f"{where}.{name}" if where else str(name))
    elif is_masked(node) and (node != MASK or any(secrecy_of(part) or part in _LISTS for part in where.split("."))):
        yield where


def _list_index(entries: list[Any], part: str, key: str) -> int:
    """Return the index of a list entry, given by index or class name."""
    classes = [entry["class_path"].rpartition(".")[2] if is_call(entry) else "" for entry in entries]
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    if classes.count(part) == 1:
        return classes.index(part)
    entries_text = ", ".join(f"{index} ({name})" if name else str(index) for index, name in enumerate(classes))
    hint = did_you_mean(part, classes)
    raise ConfigError(key, f"{part!r} is not a unique entry of the list; its entries: {entries_text or 'none'}.{hint}")


def changes(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two configurations: location, first value and second value, None if missing.

    Args:
        before: The first configuration.
        after: The second configuration.
        where: The location of both.

    >>> list(changes({"a": 1, "b": [1, 2]}, {"b": [1, 3], "c": 4}))
    [('a', 1, None), ('b.1', 2, 3), ('c', None, 4)]
    """
    if isinstance(before, list) and isinstance(after, list):
        before, after = dict(enumerate(cast("list[Any]", before))), dict(enumerate(cast("list[Any]", after)))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from changes(before.get(key), after.get(key), f"{where}.{key}" if where else str(key))
    elif before != after:
        yield where, before, after
