"""MkDocs hooks that add the generated pages: methods, schedules, callbacks, loggers and the API reference."""

from __future__ import annotations

import functools
from typing import Any

from docs.choosing import with_choices
from docs.event_loop import with_event_loop
from docs.figures import with_figures
from docs.methods import method_files, method_pages, method_picture_files
from docs.reference import leaf_pages, reference_pages
from docs.schedules import schedule_pages, schedule_pictures
from docs.search import rank_page
from docs.verification import with_verification

__all__ = ["made_files", "made_pages", "on_config", "on_files", "on_page_markdown"]


@functools.cache
def made_pages() -> dict[str, str]:
    """Return all generated pages by path."""
    return {
        **method_pages(),
        **schedule_pages(),
        **leaf_pages("composer.callbacks", "Callbacks"),
        **leaf_pages("composer.loggers", "Loggers"),
        **reference_pages(),
    }


def made_files() -> dict[str, str | bytes]:
    """Return all generated pages and pictures by path."""
    return {**made_pages(), **method_picture_files(), **schedule_pictures()}


def on_config(config: Any) -> Any:
    """Expand the navigation entries that name a folder of generated pages."""
    pages = made_pages()
    config.nav = [_filled(entry, sorted(pages, key=str.lower)) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and pictures."""
    from mkdocs.structure.files import File

    for path, content in made_files().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Rank a page in the search, and replace its marks: results, tables of methods and checks, the pseudocode."""
    if page is not None:
        rank_page(page.file.src_uri, page.meta)
    return with_verification(with_event_loop(with_choices(with_figures(markdown), method_files())))


def _filled(entry: Any, pages: list[str]) -> Any:
    """Replace the name of a folder by its pages, the index first."""
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
