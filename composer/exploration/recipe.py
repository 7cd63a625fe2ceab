"""Recipes: the changes of a variant as Python, as arguments of ``composer train``, and as YAML."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from composer import algorithms
from composer._text import printable

__all__ = ["Change", "as_python", "as_train_arguments", "as_yaml", "parse_change"]

_FORM = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)(?P<rest>(?:\.\w+)*)\s*(?P<operator>\+=|-=|=)\s*(?P<value>.*?)\s*", re.DOTALL
)


# Strings that YAML reads as such without quotes, but for those that are constants in it.
_PLAIN = re.compile(r"[A-Za-z_]\w*")
_NO_STRINGS = ("true", "false", "null", "none", "yes", "no", "on", "off", "y", "n")


@dataclass(frozen=True)
class Change:
    """One assignment in parts: ``name.rest operator value``.

    Args:
        name: The argument of the trainer.
        rest: The attribute or key of its value, with the dot; empty for the argument itself.
        operator: "=", "+=" or "-=".
        value: The value as text.

    >>> parse_change("optimizers.lr=0.1")
    Change(name='optimizers', rest='.lr', operator='=', value='0.1')
    """

    name: str
    rest: str
    operator: str
    value: str


def as_python(changes: Sequence[str]) -> str:
    """Return changes as lines of Python; ``...`` stands for the arguments that are there.

    Args:
        changes: Assignments, see :class:`.Assignment`.

    Raises:
        ValueError: One is not an assignment.

    >>> print(as_python(["algorithms+=EMA(half_life='10ba')", "optimizers.lr=0.02", "precision=amp_bf16"]))
    from composer.algorithms import EMA
    <BLANKLINE>
    Trainer(
        ...,
        algorithms=[..., EMA(half_life='10ba')],
        optimizers=...,  # with lr=0.02
        precision='amp_bf16',
    )
    """
    parsed = [parse_change(change) for change in changes]
    names = sorted({name for one in parsed if one.name == "algorithms" for name in _classes(one.value)})
    lines = [f"from composer.algorithms import {', '.join(names)}", ""] if names else []
    lines += ["Trainer(", "    ...,"]
    for name in dict.fromkeys(one.name for one in parsed):
        lines += [f"    {line}" for line in _argument(name, [one for one in parsed if one.name == name])]
    return "\n".join([*lines, ")"]) if parsed else "# nothing to change"


def as_yaml(changes: Sequence[str]) -> str:
    """Return changes as YAML for ``composer train``, to be merged into a configuration.

    Args:
        changes: Assignments, see :class:`.Assignment`.

    Raises:
        ValueError: One is not an assignment.

    >>> print(as_yaml(["algorithms+=EMA(half_life='10ba')", "optimizers.lr=0.02", "precision=amp_bf16"]))
    algorithms:
      # besides those that are there
      - EMA: {half_life: "10ba"}
    optimizers:
      # of the one that is there
      lr: 0.02
    precision: "amp_bf16"
    """
    parsed = [parse_change(change) for change in changes]
    lines: list[str] = []
    for name in dict.fromkeys(one.name for one in parsed):
        own = [one for one in parsed if one.name == name]
        last = own[-1]
        if not last.rest and last.operator == "=":
            lines.append(f"{name}: {_yaml(_node(last.value))}")
            continue
        lines.append(f"{name}:")
        added = [one for one in own if one.operator == "+="]
        lines += [f"  # without {printable(one.value)}" for one in own if one.operator == "-="]
        lines += ["  # besides those that are there"] if added else []
        lines += [f"  - {_entry(one.value)}" for one in added]
        nested = [one for one in own if one.rest]
        lines += ["  # of the one that is there"] if nested else []
        lines += [f"  {one.rest[1:]}: {_yaml(_node(one.value))}" for one in nested]
    return "\n".join(lines) if lines else "# nothing to change"


def as_train_arguments(changes: Sequence[str]) -> str:
    """Return changes as arguments to paste after ``composer train run.yaml``, for a shell.

    What is to be removed from the configuration is a comment at the end: no argument does that.

    Args:
        changes: Assignments, see :class:`.Assignment`.

    Raises:
        ValueError: One is not an assignment.

    >>> print(
    ...     as_train_arguments(
    ...         ["algorithms+=EMA(half_life='10ba')", "optimizers.lr=0.02", "algorithms-=MixUp"]
    ...     )
    ... )
    --algorithms+ '{EMA: {half_life: "10ba"}}' --optimizers.lr 0.02  # and remove MixUp from algorithms
    """
    parsed = [parse_change(change) for change in changes]
    words: list[str] = []
    for one in parsed:
        if one.operator != "-=":
            words += [f"--{one.name}{one.rest}{'+' if one.operator == '+=' else ''}", _word(_node(one.value))]
    removed = [f"{printable(one.value)} from {one.name}" for one in parsed if one.operator == "-="]
    return "  # and remove ".join([shlex.join(words), *([", ".join(removed)] if removed else [])])


def parse_change(change: str) -> Change:
    """Return the parts of an assignment, without creating what it names.

    Args:
        change: The assignment, see :class:`.Assignment`.

    Raises:
        ValueError: It has another form.

    >>> parse_change("algorithms+=EMA()").value
    'EMA()'
    """
    match = _FORM.fullmatch(change)
    if match is None or not match["value"]:
        raise ValueError(f"A change has the form NAME=VALUE, NAME+=VALUE or NAME-=VALUE; got {change!r}.")
    return Change(match["name"], match["rest"], match["operator"], match["value"])


def _argument(name: str, changes: Sequence[Change]) -> list[str]:
    """The lines of an argument of the trainer."""
    last = changes[-1]
    if not last.rest and last.operator == "=":
        return [f"{name}={_python(last.value)},"]
    added = [_python(one.value) for one in changes if one.operator == "+="]
    notes = [f"with {one.rest[1:]}={_python(one.value)}" for one in changes if one.rest]
    notes += [f"without {printable(one.value)}" for one in changes if one.operator == "-="]
    value = f"[..., {', '.join(added)}]" if added else "..."
    return [f"{name}={value}," + (f"  # {', '.join(notes)}" if notes else "")]


def _node(text: str) -> ast.expr:
    """The value of an assignment as an expression; what is none is a string, as in an assignment."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return ast.Constant(text)
    constants = {"true": True, "false": False, "null": None, "none": None}
    if isinstance(node, ast.Name) and node.id.lower() in constants:
        return ast.Constant(constants[node.id.lower()])
    if any(isinstance(part, ast.Call) for part in ast.walk(node)):
        return node
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.Constant(text)
    return node


def _python(text: str) -> str:
    return ast.unparse(_node(text))


def _classes(text: str) -> set[str]:
    """The algorithms of this library that a value calls; other names without a module are the program's own."""
    calls = (part.func for part in ast.walk(_node(text)) if isinstance(part, ast.Call))
    return {called.id for called in calls if isinstance(called, ast.Name)} & {*algorithms.__all__}


def _entry(text: str) -> str:
    """An entry of a list of objects."""
    node = _node(text)
    # A call by names needs no braces in a list of a line each.
    return _yaml(node)[1:-1] if isinstance(node, ast.Call) and node.keywords and not node.args else _yaml(node)


def _word(node: ast.expr) -> str:
    """A value of an option; a string that YAML reads as one needs no quotes."""
    value = node.value if isinstance(node, ast.Constant) else None
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_STRINGS
    return str(value) if is_plain else _yaml(node)


def _yaml(node: ast.expr) -> str:
    """A value in flow style; strings are quoted as in JSON, which is YAML."""
    if isinstance(node, ast.Call):
        arguments = [f"{keyword.arg}: {_yaml(keyword.value)}" for keyword in node.keywords]
        name = ast.unparse(node.func)
        if node.args:
            listed = ", ".join(_yaml(one) for one in node.args)
            arguments.insert(0, f"args: [{listed}]")
            named = [f"init_args: {{{', '.join(arguments[1:])}}}"] if node.keywords else []
            return f"{{{', '.join([f'class_path: {name}', arguments[0], *named])}}}"
        return f"{{{name}: {{{', '.join(arguments)}}}}}" if arguments else name
    if isinstance(node, ast.List | ast.Tuple):
        return f"[{', '.join(_yaml(one) for one in node.elts)}]"
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return f"{{{', '.join(f'{_yaml(key)}: {_yaml(value)}' for key, value in pairs if key is not None)}}}"
    return _scalar(ast.literal_eval(node))


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in escaped) + '"'
    return repr(value)
