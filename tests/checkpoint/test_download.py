"""One rank downloads a checkpoint for the others."""

from __future__ import annotations

from pathlib import Path

from composer import dist
from composer.checkpoint import download_monolithic_checkpoint


def fetched(source: str, folder: str, everywhere: bool) -> str:
    """The content as soon as the call returns, or the error."""
    path = Path(folder, "ep1.pt")
    try:
        download_monolithic_checkpoint(source, path, global_rank_zero_only=not everywhere)
    except (FileNotFoundError, RuntimeError) as error:
        return f"{dist.get_global_rank()} {type(error).__name__}"
    return path.read_text()


def test_all_ranks_wait_for_the_download(tmp_path, two_ranks) -> None:
    (tmp_path / "source.pt").write_text("weights")
    for everywhere in (False, True):
        assert two_ranks.run(fetched, str(tmp_path / "source.pt"), str(tmp_path), everywhere) == ["weights"] * 2


def test_all_ranks_raise_if_the_file_is_missing(tmp_path, two_ranks) -> None:
    answers = two_ranks.run(fetched, str(tmp_path / "absent.pt"), str(tmp_path), False)
    assert answers == ["0 FileNotFoundError", "1 RuntimeError"]
