"""``composer explore`` as a command: its options, mistakes in them, and exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.exploration.choice import CHOICES
from composer.exploration.exploration import Exploration
from composer.exploration.goal import Goal
from composer.exploration.planning import BaselineError, Plan
from composer.exploration.variant import BASELINE
from composer.trials import Target

PLAN = Plan(Goal("accuracy", True, target=0.9), (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1 / 0")


def explored(monkeypatch: pytest.MonkeyPatch, *words: str, raises: BaseException | None = None) -> dict[str, Any]:
    """Run the command with another function in place of the exploration, and return its arguments."""
    given: dict[str, Any] = {}

    def explore(program: Target, **arguments: Any) -> Exploration:
        given.update(arguments, program=program)
        arguments["progress"]("a line")
        if raises is not None:
            raise raises
        return Exploration(PLAN, BASELINE)

    monkeypatch.setattr("composer.exploration.explore.explore", explore)
    given["code"] = main(["explore", *words])
    return given


def test_options_are_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = explored(
        monkeypatch,
        *(
            "--within",
            "0.5%",
            "--metric",
            "Accuracy",
            "--budget",
            "2h",
            "--search-cost",
            "30",
            "--pairs",
            "6",
            "--methods",
            "EMA, SAM",
        ),
        *("--without", "batch size", "--try", "algorithms+=A()", "--try", "algorithms+=B()", "--set", "seed=1"),
        *("--ranks", "2", "--seed", "100", "--fit", "2", "train.py", "--lr", "1"),
    )
    assert found.pop("program") == Target("script", "train.py", ("--lr", "1"), fit=2)
    assert callable(found.pop("progress"))
    assert found == {
        "target": None,
        "quality_at": None,
        "within": "0.5%",
        "metric": "Accuracy",
        "budget": "2h",
        "search_cost": 30,
        "pairs": 6,
        "methods": ["EMA", "SAM"],
        "without": ["batch size"],
        "extra": ["algorithms+=A()", "algorithms+=B()"],
        "confirm": None,
        "changes": ["seed=1"],
        "ranks": 2,
        "seed": 100,
        "folder": "explore-train",
        "time_limit": "1d",
        "clock": "wall",
        "code": 0,
    }
    out, err = capsys.readouterr()
    assert out.startswith("Keep what you have")
    assert "kept in explore-train; the same command continues there" in err
    assert err.endswith("composer explore: a line\n")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["train.py", "--target", "A>=0.9", "--budget", "2h"], ()),
        (["train.py", "--lr", "1", "--target=A>=0.9", "--budget=2h", "name"], ("--lr", "1", "name")),
        (["train.py", "--target", "A>=0.9", "--budget", "2h", "--", "--seed", "3"], ("--seed", "3")),
        (["--budget", "2h", "train.py", "--target", "A>=0.9", "--lr", "1"], ("--lr", "1")),
        # An option before the script says that what follows the script is its own.
        (["--target", "A>=0.9", "--budget", "2h", "train.py", "--target", "x", "--seed", "3"],
         ("--target", "x", "--seed", "3")),
        (["--target", "A>=0.9", "--budget", "2h", "--", "train.py", "--target", "x"], ("--target", "x")),
    ],
)  # fmt: skip
def test_options_may_follow_the_script(
    monkeypatch: pytest.MonkeyPatch, words: list[str], arguments: tuple[str, ...]
) -> None:
    found = explored(monkeypatch, *words)
    assert found["program"] == Target("script", "train.py", arguments)
    assert (found["target"], found["budget"], found["seed"]) == ("A>=0.9", "2h", 0)


def test_no_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explored(monkeypatch, "--target", "a>=1", "--methods", "none", "train.py")["methods"] == []


def test_a_recipe_to_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--target", "a>=1", "--confirm", "BlurPool+EMA", "--confirm", "optimizers.lr=0.1", "train.py")
    assert explored(monkeypatch, *words)["confirm"] == ["BlurPool+EMA", "optimizers.lr=0.1"]


def test_the_page_is_written_after_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    explored(monkeypatch, "--target", "a>=1", "--html", "page.html", "train.py")
    assert "Keep what you have" in (tmp_path / "page.html").read_text()
    out, err = capsys.readouterr()
    assert out.startswith("Keep what you have")
    assert err.endswith(f"composer explore: wrote {tmp_path / 'page.html'}\n")


def test_a_baseline_that_fails_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BaselineError("A run of the baseline did not reach a>=1.")
    assert explored(monkeypatch, "--target", "a>=1", "train.py", raises=error)["code"] == 1
    assert capsys.readouterr().err.endswith("composer: A run of the baseline did not reach a>=1.\n")


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        explored(monkeypatch, "--target", "a>=1", "train.py", raises=KeyboardInterrupt())
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith("all runs were ended. Run the same command again to continue.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "Give one goal: target "),
        (["--target", "a>0.9", "train.py"], "target must be METRIC>=VALUE or METRIC<=VALUE"),
        (["--target", "a>=1", "--within", "1%", "train.py"], "--within: not allowed with argument --target"),
        (["--targt", "a>=1", "train.py"], "no option '--targt'. Did you mean '--target'?"),
        (["--target", "a>=1", "--methods", "EMAA", "train.py"], "Did you mean 'EMA'?"),
        (["--target", "a>=1", "--methods", "", "train.py"], "--methods is empty. Write names that composer explore"),
        (["--target", "a>=1", "--methods", "none,EMA", "train.py"], "--methods must be one of"),
        (["--target", "a>=1", "--without", " ", "train.py"], "--without is empty"),
        (["--target", "a>=1", "--seed", "-5", "train.py"], "seed must be at least 0, but got -5"),
        (["--target", "a>=1", "--seed", "4294967295", "train.py"], "seed must be at most 4294957295, but got"),
        (
            ["--target", "a>=1", "--folder", "train.py", "train.py"],
            "folder='train.py' cannot hold records: File exists",
        ),
        (
            ["--target", "a>=1", "--folder", "/proc/no/x", "train.py"],
            "folder='/proc/no/x' cannot hold records: No such",
        ),
        (["--target", "a>=1", "--without", "learning rates", "train.py"], "Did you mean 'learning rate'?"),
        (["--target", "a>=1", "--budget", "soon", "train.py"], "budget must be a positive duration"),
        (["--target", "a>=1", "--pairs", "2", "train.py"], "pairs must be at least 6"),
        (["--target", "a>=1", "--try", "EMA()", "train.py"], "A change has the form"),
        (["--target", "a>=1", "--confirm", "EMA+BlurPol", "train.py"], "'BlurPol', which is no method. Did you mean"),
        (["--target", "a>=1", "--confirm", "optimizer.lr=1", "train.py"], "Did you mean 'optimizers'?"),
        (["--target", "a>=1", "--confirm", "EMA", "--try", "a+=B()", "train.py"], "is one too many"),
        (["--target", "a>=1", "--html", "no/page.html", "train.py"], "there is no folder 'no'. Create it first."),
        (["--target", "a>=1", "trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        (["--target", "a>=1"], "No script was given"),
    ],
)
def test_usage_errors(words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explore", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(" See composer explore --help.\n")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_list_names_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(CHOICES)] == [*CHOICES]
    assert "batch size (only for --without)" in lines
