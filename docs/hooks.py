"""Adds the pages that are made of the packages themselves: methods, schedules, callbacks, loggers, the reference."""

from __future__ import annotations

import functools
from typing import Any

from docs.event_loop import with_event_loop
from docs.figures import with_figures
from docs.methods import method_pages, method_picture_files
from docs.reference import leaf_pages, reference_pages
from docs.schedules import schedule_pages, schedule_pictures

__all__ = ["made_files", "made_pages", "on_config", "on_files", "on_page_markdown"]


@functools.cache
def made_pages() -> dict[str, str]:
    """Return all pages that are made, by their path."""
    return {
        **method_pages(),
        **schedule_pages(),
        **leaf_pages("composer.callbacks", "Callbacks"),
        **leaf_pages("composer.loggers", "Loggers"),
        **reference_pages(),
    }


def made_files() -> dict[str, str | bytes]:
    """Return all pages and pictures that are made, by their path."""
    return {**made_pages(), **method_picture_files(), **schedule_pictures()}


def on_config(config: Any) -> Any:
    """Fill the entries of the navigation that name a folder of pages that are made."""
    pages = made_pages()
    config.nav = [_filled(entry, sorted(pages, key=str.lower)) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures."""
    from mkdocs.structure.files import File

    for path, content in made_files().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what is taken from elsewhere: the figures of the benchmarks, and the loop in pseudocode."""
    return with_event_loop(with_figures(markdown))


def _filled(entry: Any, pages: list[str]) -> Any:
    """Put the pages of a folder in the place of its name, the one that lists them first."""
    if isinstance(entry, str):
        return entry
    ((title, place),) = entry.items()
    if isinstance(place, list):
        return {title: [_filled(part, pages) for part in place]}
    if not place.endswith("/"):
        return entry
    own = [page for page in pages if page.startswith(place)]
    first = f"{place}index.md"
    return {title: [first, *(page for page in own if page != first)]}
