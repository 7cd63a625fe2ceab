"""A configuration as a tree: calls ``{class_path, init_args}`` inside the arguments of a call."""

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
    "is_call",
    "merged",
    "parse_value",
    "read",
    "shown",
    "spelled",
    "with_value",
]

Tree: TypeAlias = dict[str, Any]

# Arguments of the trainer that are objects, so that a mere name is a class and not a text.
OBJECTS: Final = frozenset({"algorithms", "callbacks", "loggers", "model", "optimizers", "profiler", "schedulers"})
_LOADERS: Final = frozenset({"eval_dataloader", "train_dataloader"})

# Bytes of a file, and parts of a place.
_LARGEST: Final = 10_000_000
_DEEPEST: Final = 100
_LONGEST: Final = 10_000  # bits of a number, some 3000 digits

# Where values are masked for what is beside them, rather than for their name.
_LISTS: Final = frozenset({"args", "argv", "headers", "keys", "tokens", "value"})
_CALL: Final = ("class_path", "args", "init_args")


class ConfigError(ValueError):
    """Something in a configuration is wrong.

    Args:
        where: The place, names and numbers with dots between them; "" for the whole.
        what: What is wrong and how to mend it.

    >>> print(ConfigError("algorithms.0", "there is no class 'MixUpp'."))
    algorithms.0: there is no class 'MixUpp'.
    """

    def __init__(self, where: str, what: object) -> None:
        super().__init__(where, what)  # which is what a copy in another process is made of
        self.where = where

    def __str__(self) -> str:
        return ": ".join(str(part) for part in self.args if part)


def is_call(node: object) -> bool:
    """Tell whether a part of a tree stands for an object.

    Args:
        node: The part.

    >>> is_call({"class_path": "torch.nn.Identity"}), is_call({"lr": 0.1})
    (True, False)
    """
    return isinstance(node, Mapping) and "class_path" in node


def parse_value(text: str) -> Any:
    """Return the value that a text is in YAML.

    Args:
        text: The text.

    Raises:
        ConfigError: It is no YAML.

    >>> parse_value("0.1"), parse_value("1e-4"), parse_value("2ep"), parse_value("[EMA, MixUp]")
    (0.1, 0.0001, '2ep', ['EMA', 'MixUp'])
    """
    from composer.hparams._yaml import load

    yaml = import_extra("yaml", "hparams", "A configuration")
    try:
        return load(text)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:  # as of `!!int x`, `!!bool x`
        # Without the line itself, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        # `api_key: *abc` and `api_key: !abc` take a secret for a name.
        problem = re.sub(r"((?:undefined|duplicate) (?:alias|anchor)|for the tag|tag handle) .*", r"\1", str(problem))
        raise ConfigError("", f"this is no YAML: {mask_text(problem)}{where}") from None


def read(path: str | Path) -> Tree:
    """Read a file.

    Args:
        path: Where it is.

    Raises:
        ConfigError: It cannot be read, is no YAML, or does not hold names and values.

    >>> _ = (tmp_path / "run.yaml").write_text("max_duration: 2ep")
    >>> read(tmp_path / "run.yaml")
    {'max_duration': '2ep'}
    """
    try:
        if (size := Path(path).stat().st_size) > _LARGEST:
            raise ConfigError("", f"a configuration has {_LARGEST:,} bytes at most, but this has {size:,}.")
        content = parse_value(Path(path).read_text(encoding="utf-8"))
    except (OSError, ConfigError, UnicodeError) as error:
        raise ConfigError(str(path), getattr(error, "strerror", None) or error) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(str(path), "there must be arguments of the trainer with their values in it.")
    return cast(Tree, content)


def spelled(tree: Mapping[str, Any]) -> Tree:
    """Return a tree in which each object is spelled out: ``{class_path, init_args}``, with the whole import path.

    Where only objects may stand, ``EMA`` is short for ``{class_path: EMA}`` and ``MixUp: {alpha: 0.2}`` for
    ``{class_path: MixUp, init_args: {alpha: 0.2}}``.

    Args:
        tree: The arguments of the trainer.

    Raises:
        ConfigError: A class does not exist, or something is no call.

    >>> spelled({"algorithms": ["EMA", {"MixUp": {"alpha": 0.2}}]})["algorithms"][1]
    {'class_path': 'composer.algorithms.MixUp', 'init_args': {'alpha': 0.2}}
    """
    _check_plain(tree, "", 0)
    return {
        name: _objects(value, name) if name in OBJECTS | _LOADERS else _spelled(value, name)
        for name, value in tree.items()
    }


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Refuse what is too deep, as what contains itself is, numbers that cannot be shown, and names that are no text."""
    if depth > _DEEPEST:
        raise ConfigError(f"{where[:40]}...", f"it is nested more than {_DEEPEST} levels deep, or contains itself.")
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        raise ConfigError(where, "the number has too many digits.")
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        for key, entry in entries.items():
            if not isinstance(key, str) and (depth == 0 or where.endswith("init_args")):
                raise ConfigError(
                    where, f"the name of an argument must be text, but is {key!r} ({type(key).__name__}); quote it."
                )
            _check_plain(entry, f"{where}.{key}" if where else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(cast("Sequence[Any]", value)):
            _check_plain(entry, f"{where}.{place}", depth + 1)


def _objects(value: Any, where: str) -> Any:
    """What stands where objects are wanted."""
    if isinstance(value, list):
        return [_objects(entry, f"{where}.{place}") for place, entry in enumerate(cast("list[Any]", value))]
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
    return _spelled(value, where)


def _spelled(value: Any, where: str) -> Any:
    """Any other part."""
    if is_call(value):
        return _call(value, where)
    if isinstance(value, Mapping):
        return {key: _spelled(entry, f"{where}.{key}") for key, entry in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(entry, f"{where}.{place}") for place, entry in enumerate(cast("Sequence[Any]", value))]
    return value


def _call(node: Mapping[str, Any], where: str) -> Tree:
    for key in node:
        if key not in _CALL:
            raise ConfigError(
                where,
                f"an object has class_path, init_args and args, but no {key!r}; "
                f"its arguments stand in init_args.{did_you_mean(key, _CALL)}",
            )
    path, arguments, places = node["class_path"], node.get("init_args") or {}, node.get("args") or []
    if not isinstance(path, str) or not isinstance(arguments, Mapping) or not isinstance(places, list):
        raise ConfigError(where, "class_path is a name, init_args has names with values, and args is a list.")
    try:
        path = full_path(path)
    except ValueError as error:
        raise ConfigError(where, error) from None
    made: Tree = {"class_path": path}
    if places:
        made["args"] = _spelled(places, f"{where}.args")
    made["init_args"] = _spelled(arguments, where)
    return made


def merged(tree: Any, over: Any) -> Any:
    """Return a tree with the values of another one in it; lists, and calls of another class, take the place of others.

    Args:
        tree: The tree.
        over: What goes before it.

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
    """Return a tree with one value set.

    Args:
        tree: The tree, spelled out.
        key: Its place: names with dots between them. An entry of a list has its number or, if it is a call, its class;
            ``init_args`` may be left out.
        value: The value.
        append: Whether it is one more entry of the list there.

    Raises:
        ConfigError: There is no such entry of a list, or something else than a list to append to.

    >>> tree = spelled({"algorithms": ["EMA", {"MixUp": {"alpha": 0.2}}]})
    >>> with_value(tree, "algorithms.MixUp.alpha", 0.3)["algorithms"][1]["init_args"]
    {'alpha': 0.3}
    >>> with_value({"tags": "a"}, "tags", "b", append=True)
    {'tags': ['a', 'b']}
    """
    parts = key.split(".")
    if len(parts) > _DEEPEST:
        raise ConfigError(f"{key[:40]}...", f"a place has {_DEEPEST} parts at most.")
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
        place = _place(entries, part, key)
        entries[place] = _with_value(entries[place], below, value, append, key)
        return entries
    if is_call(node) and part not in _CALL:
        part, below = "init_args", rest
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(key, f"there is the value {shown(key, node)}, which has no {part!r}.")
    inner: Tree = dict(cast("Mapping[str, Any]", node or {}))
    inner[part] = _with_value(inner.get(part), below, value, append, key)
    return inner


def shown(name: str, value: object) -> str:
    """Return a value as a message shows it: one that is a secret by its name is masked.

    Args:
        name: Its name, or its place in a configuration.
        value: The value.

    >>> shown("seed", "x"), shown("loggers.0.api_key", "abc")
    ("'x'", "'***'")
    """
    parts = name.split(".")
    named = next((part for part in parts if secrecy_of(part)), parts[-1])
    return repr(mask_values({named: value})[named])


def check_not_masked(tree: Tree) -> None:
    """Refuse a configuration in which secrets were masked when it was saved, and have not been given again.

    Args:
        tree: The configuration.

    Raises:
        ConfigError: There are some; names the places.

    >>> check_not_masked({"loggers": {"class_path": "Tracker", "init_args": {"api_key": "***"}}})
    Traceback (most recent call last):
    composer.hparams.config_tree.ConfigError: loggers.api_key: the secret was masked when ...
    """
    found = list(_masked(tree, ""))
    if found:
        raise ConfigError(
            ", ".join(found),
            f"the secret was masked when this configuration was saved. Give it again, as by --{found[0]} VALUE on the "
            f"command line, or leave the argument out where the environment has it.",
        )


def _masked(node: Any, where: str) -> Iterator[str]:
    """The places of masked values."""
    if isinstance(node, (list, Mapping)):
        many = cast("list[Any] | Mapping[str, Any]", node)
        for name, entry in enumerate(many) if isinstance(many, list) else many.items():
            is_between = name == "init_args" and is_call(node)
            yield from _masked(entry, where if is_between else f"{where}.{name}" if where else str(name))
    elif is_masked(node) and (node != MASK or any(secrecy_of(part) or part in _LISTS for part in where.split("."))):
        yield where


def _place(entries: list[Any], part: str, key: str) -> int:
    """The number of an entry of a list, of which its number or its class is given."""
    classes = [entry["class_path"].rpartition(".")[2] if is_call(entry) else "" for entry in entries]
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    if classes.count(part) == 1:
        return classes.index(part)
    there = ", ".join(f"{place} ({name})" if name else str(place) for place, name in enumerate(classes)) or "none"
    raise ConfigError(key, f"{part!r} is no one entry of the list; there are: {there}.{did_you_mean(part, classes)}")


def changes(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs between two trees: the place, the value in the first and that in the second, None for none.

    Args:
        before: The first.
        after: The second.
        where: The place of both.

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
