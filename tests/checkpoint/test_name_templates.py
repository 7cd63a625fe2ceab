"""Names of checkpoints, and the files that match them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Timestamp
from composer.checkpoint.name_templates import counters, is_plain, names_in, partial_files
from composer.core.name_placeholders import check_run_name, format_name, with_run_name

TEMPLATE = "ep{epoch}-ba{batch}-rank{rank}.pt"
NESTED = "sub/ep{epoch}/ep{epoch}-ba{batch:04d}.pt"


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 99))
def test_numbers_are_parsed_back_from_a_name(epoch, batch, rank) -> None:
    name = format_name(TEMPLATE, "run", Timestamp(epoch=epoch, batch=batch), rank=rank)
    assert counters(name, TEMPLATE) == (epoch, batch)
    assert counters(f"x{name}", TEMPLATE) == ()
    assert counters(format_name(NESTED, "run", Timestamp(epoch=epoch, batch=batch)), NESTED) == (epoch, batch)


def test_repeated_counter_must_match(tmp_path) -> None:
    assert counters("ep1-ep1.pt", "ep{epoch}-ep{epoch}.pt") == (1,)
    assert counters("ep1-ep2.pt", "ep{epoch}-ep{epoch}.pt") == ()
    for name in ("sub/ep1/ep1-ba0004.pt", "sub/ep1/ep2-ba0004.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert names_in(tmp_path, NESTED) == ["sub/ep1/ep1-ba0004.pt"]


def is_run_name(text: str) -> bool:
    try:
        return check_run_name("run_name", text) == text
    except ValueError:
        return False


@given(st.text(alphabet="{}!:a0_/.", max_size=8).filter(is_run_name), st.integers(0, 99))
def test_run_name_is_literal(run_name, epoch) -> None:
    bound = with_run_name("{run_name}-{{x}}-{epoch:03d}", run_name)
    made = format_name(bound, "another", Timestamp(epoch=epoch))
    assert made == f"{run_name}-{{x}}-{epoch:03d}"
    assert counters(made, bound) == (epoch,)
    assert counters(f"a{made}", bound) == ()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "../a",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "C:/a",
        "C:a",
        "a\\..\\b",
        "\\a",
        "s3://b/a",
        "file:///a",
        "a\0",
    ],
)
def test_names_with_path_traversal(name) -> None:
    assert not is_plain(name)


def test_symbolic_links_are_neither_returned_nor_followed(tmp_path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    for one in (folder / "sub", other):
        one.mkdir(parents=True)
        (one / "ep1.pt").touch()
    (folder / "sub" / "ep2.pt").symlink_to("ep1.pt")
    assert names_in(folder, "sub/ep{epoch}.pt") == ["sub/ep1.pt"]
    (folder / "ep3").symlink_to(other)
    assert names_in(folder, "ep{epoch}/ep1.pt") == []
    (other / ".ep1.pt.0123abcd.tmp").touch()
    assert partial_files(folder, "ep{epoch}/ep1.pt") == []


@pytest.mark.parametrize("template", [TEMPLATE, "sub/ep{epoch}-ba{batch}.pt", "ep{epoch}/ba{batch}.pt"])
def test_partial_files(template, tmp_path) -> None:
    name = format_name(template, "run", Timestamp(epoch=1, batch=2), rank=0)
    above, _, last = name.rpartition("/")
    (tmp_path / above).mkdir(exist_ok=True)
    keep = [
        name,
        f"{above}/.other.pt.01234567.tmp",
        f"{name}.tmp",
        f"{above}/.{last}.tmp",
        f"{above}/.{last}.0123456x.tmp",
    ]
    for one in [*keep, f"{above}/.{last}.89abcdef.tmp"]:
        (tmp_path / one.lstrip("/")).touch()
    assert [os.path.relpath(path, tmp_path) for path in partial_files(tmp_path, template)] == [
        f"{above}/.{last}.89abcdef.tmp".lstrip("/")
    ]
