"""Public names of Composer 0.32 exist with their arguments and defaults, or are in the migration guide."""

from __future__ import annotations

import enum
import sys
import types

import pytest

from tests import apart
from tests.design import ROOT
from tests.predecessor import (
    FACTS,
    TABLE_OF_NAMES,
    Argument,
    differences,
    listed,
    parse,
    parse_argument,
    split_arguments,
)

GUIDE = ROOT / "docs" / "migrating.md"


@pytest.fixture(scope="module")
def found() -> list[str]:
    apart.make_importable()
    return list(differences(parse((FACTS / "signatures.txt").read_text())))


def test_every_difference_is_in_the_guide(found: list[str]) -> None:
    known = {name for names, *_ in listed(GUIDE.read_text()) for name in names}
    missing = "\n".join(f"| `{name}` | what is here | why |" for name in found if name not in known)
    assert not missing, f"Build what is missing, or add to {TABLE_OF_NAMES!r} of docs/migrating.md:\n{missing}"


def test_the_guide_lists_only_differences(found: list[str]) -> None:
    names = [name for names, *_ in listed(GUIDE.read_text()) for name in names]
    assert [name for name in names if name not in found] == []
    assert len(names) == len(set(names))


def test_every_row_has_a_replacement_and_a_reason() -> None:
    rows = listed(GUIDE.read_text())
    assert rows
    assert [names for names, *cells in rows if len(cells) != 2 or not all(cells)] == []


def test_facts_are_read_completely() -> None:
    text = (FACTS / "signatures.txt").read_text()
    entries = parse(text)
    names = [entry.path for entry in entries]
    described = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    assert len(names) + sum(len(entry.members) for entry in entries) == len(described)
    trainer = entries[names.index("composer.Trainer")]
    assert len(trainer.arguments) == 54
    assert [member.path for member in trainer.members][:2] == [
        "composer.Trainer.saved_checkpoints",
        "composer.Trainer.fit",
    ]
    assert len(entries[names.index("composer.Event")].values) == 40


# ------------------------------------------------------------------------------- the comparison itself finds things


def test_arguments_are_read() -> None:
    assert split_arguments("a, b=('x', 'y,z'), [kw] c=<E.A: 'a,b'>, d={1: 2}") == [
        "a",
        "b=('x', 'y,z')",
        "[kw] c=<E.A: 'a,b'>",
        "d={1: 2}",
    ]
    assert parse_argument("[kw] name='Table'") == Argument("name", "'Table'", keyword_only=True)
    assert parse_argument("lr=<required parameter>") == Argument("lr", None, keyword_only=False)


class Kept:
    """What the facts below describe, changed in each of the ways that count."""

    annotated: int

    def __init__(self, first, second=2, third=False, *, fourth="a"):
        self.given = first

    def method(self, extra, moved, a=None):
        """Takes another first argument."""

    @staticmethod
    def static(x):
        """Is called without an object."""

    @property
    def shown(self):
        """Is there."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "azure"


def longer(a, b=1, c=2, **rest):
    """Takes more than before."""


FACTS_OF_KEPT = """# a comment

[predecessor_example]
class Kept(first, third=0, second=2, fourth='a', [kw] fifth=None)
    method(moved, a=None)
    static(x)  [staticmethod]
    gone(x)
    .shown
    .given
    .annotated
    .absent
Color: enum RED='red' BLUE='blue' GREEN='green'
longer(a, b=1)
anything(*args, **kwargs)
longer  (as above)
CONSTANT

[predecessor_example.other]
longer  (as above)
Kept  (as above)
"""


def test_each_kind_of_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module, other = types.ModuleType("predecessor_example"), types.ModuleType("predecessor_example.other")
    vars(module).update(Kept=Kept, Color=Color, longer=longer, anything=print)
    vars(other).update(longer=lambda a: None)
    monkeypatch.setitem(sys.modules, "predecessor_example", module)
    monkeypatch.setitem(sys.modules, "predecessor_example.other", other)
    assert [name.removeprefix("predecessor_example.") for name in differences(parse(FACTS_OF_KEPT))] == [
        "Kept(third?)",
        "Kept(second?)",
        "Kept(fourth?)",
        "Kept(fifth)",
        "Kept.method(moved?)",
        "Kept.method(a?)",
        "Kept.method(extra?)",
        "Kept.gone",
        "Kept.absent",
        "Color.BLUE='blue'",
        "Color.GREEN='green'",
        "CONSTANT",
        "other.longer",
        "other.Kept",
    ]


@pytest.mark.parametrize(
    ("old", "same"), [("1.0", True), ("2", False), ("'a'", False), ("False", False), ("...", True)]
)
def test_defaults(old: str, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("predecessor_example")
    module.made = lambda x=1: x
    monkeypatch.setitem(sys.modules, "predecessor_example", module)
    entries = parse(f"[predecessor_example]\nmade(x={old})")
    assert list(differences(entries)) == ([] if same else [f"predecessor_example.made(x={old})"])


def test_rows_are_read() -> None:
    table = "| name | here | why |\n|---|---|---|\n| `a.b(c='x')`, `d` | e | f |\n"
    document = f"# Guide\n\n{TABLE_OF_NAMES}\n\n{table}\n## More\n\n| `x` | y | z |\n"
    assert listed(document) == [(["a.b(c='x')", "d"], "e", "f")]
