"""Generated pages: nothing public is missing, and they agree with the code."""

from __future__ import annotations

import doctest
import inspect
import json
import re
from pathlib import Path

import pytest
import torch

from composer import Trainer, algorithms, callbacks, functional, loggers
from composer.core.callback import Callback
from composer.core.logger_destination import LoggerDestination
from docs import choosing, curves, figures, schedules, text
from docs.docstrings import TRAINER_GROUPS
from docs.hooks import made_pages, on_config, on_page_markdown
from docs.methods import CONDITIONS, conflicts, public_methods
from docs.reference import exports, public_modules
from docs.time_to_accuracy import draw_time_to_accuracy
from tests.algorithms.cases import public_classes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages():
    return made_pages()


@pytest.fixture(scope="module")
def documented(pages):
    """The pages that contain the reference of each object, by its path."""
    found: dict[str, list[str]] = {}
    for path, content in pages.items():
        for name in re.findall(r"^::: ([\w.]+)$", content, flags=re.M):
            found.setdefault(name, []).append(path)
    return found


def _where(value: object, name: str) -> str:
    return f"{value.__module__}.{name}"


@pytest.mark.parametrize("name", [*algorithms.__all__, *functional.__all__])
def test_every_method_has_a_page(documented, name):
    value = getattr(algorithms, name)
    places = documented.get(_where(value, name), [])
    folder = "methods/" if value.__module__.startswith("composer.algorithms.") else "reference/"
    assert [place for place in places if place.startswith((folder, "reference/algorithms"))], name


def test_methods_are_all_classes_and_packing():
    assert {method.name for method in public_methods()} == {*public_classes(), "SequencePacking"}


def test_every_function_has_a_page(documented):
    missing = [name for name in functional.__all__ if _where(getattr(functional, name), name) not in documented]
    assert not missing


@pytest.mark.parametrize("name", schedules.public_schedules())
def test_every_schedule_has_a_page_with_a_curve(pages, documented, name):
    value = schedules.public_schedules()[name]
    assert documented[_where(value, name)] == [f"schedules/{name}.md"]
    has_curve = f"pictures/{name}.svg" in pages[f"schedules/{name}.md"]
    assert has_curve == (name not in schedules.WITHOUT_CURVE)


@pytest.mark.parametrize(("package", "base"), [(callbacks, Callback), (loggers, LoggerDestination)])
def test_every_callback_and_logger_has_a_page(pages, documented, package, base):
    folder = package.__name__.rpartition(".")[2]
    for name in package.__all__:
        value = getattr(package, name)
        if not value.__module__.startswith(f"{package.__name__}."):
            continue  # a base class, which the API reference contains
        (page,) = documented[_where(value, name)]
        assert page.startswith(f"{folder}/")
        if isinstance(value, type) and issubclass(value, base):
            assert f"[{name}]" in pages[f"{folder}/index.md"]


def test_everything_public_is_documented_once(documented):
    assert [name for name in exports() if name not in documented] == []
    assert {name: places for name, places in documented.items() if len(places) > 1} == {}


def test_everything_that_a_package_exports_is_public():
    """Whatever a package lists in ``__all__`` and this library defines is in the reference."""
    known = set(exports())
    missing: list[str] = []
    for package in public_modules():
        if hasattr(package, "__path__"):
            values = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
            for name, value in values.items():
                module = getattr(value, "__module__", None)
                is_own = inspect.isclass(value) or inspect.isroutine(value)
                if is_own and str(module).startswith("composer.") and f"{module}.{value.__name__}" not in known:
                    missing.append(f"{package.__name__}.{name}")
    assert missing == []


def test_the_reference_shows_public_names_only(documented):
    in_reference = {name for name, places in documented.items() if places[0].startswith("reference/")}
    assert in_reference <= set(exports())
    assert "composer.trainer.trainer.Trainer" in in_reference
    # Only those that a package exports from a private module.
    assert {name for name in documented if "._" in name} <= set(exports())


def test_constants_and_packages_are_described_in_their_own_words(pages):
    assert "| Peak FLOP/s of each accelerator" in pages["callbacks/index.md"]
    assert "| A value that the json module can serialize. |" in pages["reference/core.md"]
    assert [name for name, page in pages.items() if "dict()" in page or "in reading order" in page] == []


def test_the_arguments_of_trainer_are_grouped_in_the_order_of_the_signature():
    names = list(inspect.signature(Trainer).parameters)
    places = [names.index(first) for first in TRAINER_GROUPS]
    assert places == sorted(places)
    assert places[0] == 0
    shown = text.grouped_arguments(inspect.cleandoc(Trainer.__doc__), TRAINER_GROUPS)
    assert re.findall(r"^Args: (.+)$", shown, flags=re.M) == list(TRAINER_GROUPS.values())
    assert "Args:\n" not in shown
    assert re.findall(r"^    (\w+): ", shown.partition("Attributes:")[0], flags=re.M) == names[:-1]


def test_links_between_made_pages_lead_somewhere(pages):
    for path, content in pages.items():
        folder = path.rpartition("/")[0]
        for target in re.findall(r"\]\(([\w/]+\.md)\)", content):
            assert f"{folder}/{target}" in pages, f"{path} links to {target}"


def test_every_method_page_says_when_and_how(pages):
    for method in public_methods():
        page = pages[f"methods/{method.file}"]
        for heading in (*text.SECTIONS, "Combining with other methods", "Reference"):
            assert re.search(rf"^## {heading}\n\n\S", page, flags=re.M), f"{method.name}: {heading}"


def test_conflicts_are_shown_on_both_pages(pages):
    pairs = conflicts()
    assert pairs["MixUp"]["CutMix"] == pairs["CutMix"]["MixUp"] == algorithms.CutMix.__traits__.conflicts_with["MixUp"]
    assert "[CutMix](cutmix.md)" in pages["methods/mixup.md"]
    assert "[MixUp](mixup.md)" in pages["methods/cutmix.md"]


def test_conflicts_that_depend_on_arguments_say_so(pages):
    without = [
        algorithms.MixUp(),
        algorithms.CutMix(),
        algorithms.Alibi(64, train_sequence_length_scaling=1.0),
        algorithms.StochasticDepth("Block", stochastic_method="sample"),
    ]
    depending = {
        (type(one).__name__, other)
        for one in without
        for other in set(type(one).__traits__.conflicts_with) - set(one.__traits__.conflicts_with)
    }
    assert depending == set(CONDITIONS)
    files = {method.name: method.file for method in public_methods()}
    for (one, other), condition in CONDITIONS.items():
        assert f"[{other}]({files[other]}) ({condition})" in pages[f"methods/{files[one]}"]
        assert f"[{one}]({files[one]}) ({condition})" in pages[f"methods/{files[other]}"]
        assert f"[{other}]({files[other]}) ({condition})" in pages["methods/index.md"]


def test_choosing_methods_compares_every_method(pages):
    files = {method.name: method.file for method in public_methods()}
    assert set(choosing.CHOICES) == set(files)
    page = choosing.with_choices((ROOT / "docs" / "choosing_methods.md").read_text(), files)
    tables = page.partition("## Vision")[2].partition("## Which methods conflict")[0]
    assert sorted(re.findall(r"^\| \[(\w+)\]\(methods/", tables, flags=re.M)) == sorted(files)
    assert sorted(re.findall(r"^\| \[(\w+)\]\(", pages["methods/index.md"], flags=re.M)) == sorted(files)


def test_readme_lists_methods_by_the_same_domains():
    row = (ROOT / "README.md").read_text().partition("| Methods |")[2].partition("\n")[0]
    listed = [re.findall(r"`([A-Z]\w+)`", part) for part in re.split(r"Images:|Text:|Any model:", row)[1:]]
    compared = [
        [name for name, choice in choosing.CHOICES.items() if choice.domain == domain and name != "SequencePacking"]
        for domain in choosing.DOMAINS
    ]
    assert [sorted(names) for names in listed] == [sorted(names) for names in compared]


def test_step_times_are_relative_to_the_step_without_a_method(tmp_path):
    assert "Not measured" in choosing.with_choices("<!-- choose: steps -->", {}, tmp_path)
    size = "ResNet-18, 8 x 3 x 96 x 96"
    rows = [[f"step: no method, {size}", 200.0], [f"step: SAM, {size}, both", 500.0], ["step: GyroDropout, 3", 9.0]]
    (tmp_path / "methods.json").write_text(json.dumps({"rows": rows}))
    shown = choosing.with_choices("<!-- choose: steps -->", {}, tmp_path)
    assert shown.endswith("| no method | 200 | 1.00× |\n| SAM | 500 | 2.50× |")


def test_navigation_is_filled():
    class Config:
        nav = [{"Overview": "index.md"}, {"Methods": "methods/"}, {"More": ["log.md", {"Schedules": "schedules/"}]}]

    overview, methods, more = on_config(Config()).nav
    assert more["More"][1]["Schedules"][0] == "schedules/index.md"
    assert "schedules/LinearScheduler.md" in more["More"].pop()["Schedules"]
    assert overview == {"Overview": "index.md"}
    assert more == {"More": ["log.md"]}
    assert methods["Methods"][0] == "methods/index.md"
    assert "methods/mixup.md" in methods["Methods"]
    assert len(set(methods["Methods"])) == len(methods["Methods"]) == len(public_methods()) + 1


# -------------------------------------------------------------------------------------------------- pictures


def test_pictures_are_drawn():
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    before = torch.get_rng_state()
    pictures = curves.method_pictures()
    assert torch.equal(torch.get_rng_state(), before)
    assert set(pictures) == set(curves.CAPTIONS) <= {method.name for method in public_methods()}
    assert all(picture.startswith((b"\x89PNG", b"<?xml")) for picture in pictures.values())


def test_curves_of_schedules_are_drawn():
    pytest.importorskip("matplotlib")
    pictures = schedules.schedule_pictures()
    assert len(pictures) == len(schedules.public_schedules()) - len(schedules.WITHOUT_CURVE)
    assert all(picture.startswith(b"<?xml") for picture in pictures.values())


# --------------------------------------------------------------------------------------------------- figures


def test_costs_are_those_of_the_results(tmp_path):
    rows = [
        ["batch: mixup_batch, 256 x 3 x 32 x 32", 3.0, 4.0, 0.75, 0.01],
        ["batch: mixup_batch, 8 x 4", 1.25, "fails", "-", "-"],
        ["images: augmix_image", "fails", 2.0, "-", "-"],
        ["own: pack_sequences, 9 documents; beside it padding them", 8.0, 2.0, 4.0, 0.1],
    ]
    assert figures.costs(tmp_path) == {}
    (tmp_path / "methods.json").write_text(json.dumps({"columns": [], "rows": rows}))
    times = "3 ms, 0.75× the time of MosaicML Composer 0.32.1"
    assert figures.costs(tmp_path) == {
        "mixup_batch": f"`mixup_batch`, 256 x 3 x 32 x 32: {times}; `mixup_batch`, 8 x 4: 1.25 ms.",
        "pack_sequences": "`pack_sequences`, 9 documents: 8 ms, 4.00× the time of padding them.",
    }


RATIOS = ["times the baseline's", "interval", "times the recipe's", "interval"]


def test_figures_take_the_place_of_their_mark(tmp_path):
    page = "Before.\n\n<!-- figures: vision -->\n\nAfter."
    assert "Not measured" in figures.with_figures(page, tmp_path)
    results = {
        "columns": ["time to target", "seconds", "±", "reached", *RATIOS, "p", "verdict", "metric after equal time"],
        "rows": [
            ["vision: baseline", 3.456, 0.5, "8 of 8", "-", "-", "-", "-", "-", "-", "-"],
            ["vision: recipe", 1.234, 0.1, "8 of 8", "0.50", "0.40 to 0.60", "-", "-", "0.01", "pays", "+0.010"],
            ["language: recipe", "never", "-", "0 of 8", "-", "-", "-", "-", "-", "-", "-"],
        ],
        "notes": ["vision: digits.", "language: bytes.", "One thread."],
    }
    (tmp_path / "time_to_target.json").write_text(json.dumps(results))
    shown = figures.with_figures(page, tmp_path)
    assert "| baseline | 3.46 ± 0.50 | 8 of 8 |  |  | - | - |\n" in shown
    assert "| recipe | 1.23 ± 0.10 | 8 of 8 | 0.50× (0.40–0.60) |  | pays | +0.010 |\n\nDigits.\n\nAfter." in shown
    assert "bytes" not in shown
    assert "| never | 0 of 8 |" in figures.with_figures("<!-- figures: language -->", tmp_path)
    assert "figures:" not in shown
    assert on_page_markdown("Plain.", page=None) == "Plain."


def test_figures_of_runs_to_their_end_have_the_final_metric(tmp_path):
    results = {
        "columns": ["time to target", "seconds", "±", "wall", "reached", *RATIOS, "final metric", "±"],
        "rows": [["vision: recipe", 1.234, 0.1, 9.0, "5 of 5", "0.50", "0.40 to 0.60", "-", "-", 0.98, 0.003]],
    }
    (tmp_path / "time_to_target.json").write_text(json.dumps(results))
    shown = figures.with_figures("<!-- figures: vision -->", tmp_path)
    assert "| recipe | 1.23 ± 0.10 | 5 of 5 | 0.50× (0.40–0.60) |  | 0.980 ± 0.003 |" in shown


def test_the_picture_of_runs_that_end_at_the_target(tmp_path):
    pytest.importorskip("matplotlib")
    curves = [{"cpu": [1.0, 2.0], "values": [0.9, 0.97]}, {"cpu": [1.0, 2.0, 3.0], "values": [0.8, 0.9, 0.98]}]
    results = {
        "rows": [["vision: baseline", 2.5], ["vision: recipe", 1.5]],
        "samples": {"vision": {"curves": {"baseline": curves, "recipe": curves[::-1]}}},
        "machine": {"date": "2026-11-23"},
    }
    (tmp_path / "time_to_target.json").write_text(json.dumps(results))
    draw_time_to_accuracy(tmp_path / "picture.svg", tmp_path)
    assert "2.5 s" in (tmp_path / "picture.svg").read_text()


def test_a_whole_benchmark_takes_the_place_of_its_mark(tmp_path):
    page = "Before.\n\n<!-- results: step -->\n\nAfter."
    assert "Not measured" in figures.with_figures(page, tmp_path)
    results = {
        "columns": ["us", "median"],
        "rows": [["ours", 1234.5], ["theirs", 0.12345]],
        "notes": ["Two rounds.", "One thread."],
        "machine": {"processor": "EPYC", "cores": 2, "date": "today", "libraries": {"torch": "2.13"}},
    }
    (tmp_path / "step.json").write_text(json.dumps(results))
    shown = figures.with_figures(page, tmp_path)
    assert "| ours | 1,234 |\n| theirs | 0.123 |\n\n- Two rounds.\n- One thread.\n\n*EPYC, 2 cores, torch 2.13" in shown
    assert "python -m benchmarks.step" in shown


# ------------------------------------------------------------------------------------------------------ text


class Documented:
    """Mixes :func:`.things`
    well.

        a = b

    It is good.

    When to use it:
        Always, but

        not here.

    Cost:
        A ``pass``.

    Args:
        x: A number.

    >>> 1 + 1
    2

    Paper: https://arxiv.org/abs/1710.09412 (Someone 2018)
    """


def test_examples_of_the_helpers_run():
    failures, tries = doctest.testmod(text)
    assert (failures, tries) == (0, 4)


def test_parts_of_a_docstring():
    assert text.summary(Documented) == "Mixes `things` well."
    assert text.prose(Documented) == "Mixes `things`\nwell.\n\n    a = b\n\nIt is good."
    assert text.section(Documented, "When to use it") == "Always, but\n\nnot here."
    assert text.section(Documented, "Cost") == "A ``pass``."
    assert text.section(Documented, "How to choose") == ""
    assert text.papers(Documented, Documented) == ["https://arxiv.org/abs/1710.09412"]
    left = text.without_sections(inspect.cleandoc(Documented.__doc__))
    assert "When to use" not in left
    assert "Cost" not in left
    assert "It is good.\n\nArgs:\n    x: A number." in left
    assert "```pycon\n>>> 1 + 1\n2\n```" in text.as_markdown(left)
