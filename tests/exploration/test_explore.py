"""Explorations of real programs: the report, interruption at any moment, mistakes, budgets, failures."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.exploration.exploration import Exploration
from composer.exploration.explore import explore
from composer.exploration.planning import BaselineError
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.variant import BASELINE, Variant
from composer.trials import ForkServer, Target
from composer.trials.fork_server import can_fork
from composer.trials.workspace import Workspace
from tests.design import ROOT
from tests.exploration.programs import learner

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks processes")

TARGET = "CrossEntropy<=0.4"
# A method of the program, one that does nothing, and one that fails in its fourth step.
EXTRA = ["algorithms+=Faster()", "algorithms+=Placebo()", "algorithms+=Crashing()"]
TUNING = ["learning rate", "batch size"]
# In CPU time: in wall time, the tests that run beside these would decide what pays.
CHOICE: dict[str, Any] = {"methods": [], "without": TUNING, "extra": EXTRA, "clock": "cpu"}


@pytest.fixture(autouse=True)
def _shared_server(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All explorations fork from the server of the session: to start one takes a second."""

    @contextlib.contextmanager
    def shared(folder: Path, probes: object, threads: int = 0) -> Generator[Workspace]:
        yield Workspace(Path(folder), server)

    monkeypatch.setattr("composer.exploration.explore.workspace", shared)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


def explored(folder: Path, program: Target | None = None, study: str = "study", **arguments: Any) -> Exploration:
    given: dict[str, Any] = {"target": TARGET, "folder": folder / study, "pairs": 6, **CHOICE, **arguments}
    return explore(learner(folder) if program is None else program, **given)


def test_a_program_is_explored_and_the_records_give_the_same_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    then = folder / "then"

    def note(line: str) -> None:
        lines.append(line)
        if line.startswith("confirmation") and "seed 1004" in line and not then.exists():
            shutil.copytree(folder / "study", then)  # what is there after a crash at this moment

    found = explored(folder, progress=note, search_cost=14)
    assert found.recipe.name == "Faster"
    assert found.result is not None
    assert found.result.pays
    decisions = {one.variant.name: (str(one.decision), one.source) for one in found.verdicts}
    assert decisions["Faster"][0] == "pays"
    assert decisions.get("Placebo", ("undecided",))[0] != "pays"
    assert "ZeroDivisionError" in found.refused["Crashing"]
    assert {one.variant.name for one in found.screened} == {"Faster", "Placebo", "Crashing"}
    assert "algorithms=[..., Faster()]" in found.python
    assert "composer.algorithms" not in found.python  # it is the program's own
    assert found.costs["screening"] > 0
    assert lines[0].startswith("one step of the program")
    assert any("pairs with a spread of" in line for line in lines)
    assert any(line.startswith("confirmation: ") and "Faster, seed 1005" in line for line in lines)
    assert "; step " in str(found)
    report = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"goal", "recipe", "verdicts", "refused", "screened", "plan", "notes", "costs", "command"} <= set(report)
    assert found.command.startswith(
        "composer explore '--target=CrossEntropy<=0.4' --search-cost=14 --pairs=6 --methods=none"
    )
    assert "'--try=algorithms+=Placebo()'" in found.command

    # A run that had started is run again, and what was recorded is not.
    monkeypatch.setattr("composer.exploration.screening_stage.screen", None)
    before = (then / "trials.jsonl").read_text()
    again = list[str]()
    assert explored(folder, study=then.name, progress=again.append, search_cost=14).recipe == found.recipe
    assert (then / "trials.jsonl").read_text().startswith(before)
    assert {line.partition(":")[0] for line in again if "seed" in line} <= {"confirmation", "attribution"}

    monkeypatch.setattr("composer.trials.study.Running", None)  # nothing may start
    lines.clear()
    assert explored(folder, progress=lines.append, search_cost=14).to_json() == found.to_json()
    assert not [line for line in lines if "seed" in line]

    assert main(["explore", "--json", *shlex.split(found.command)[2:]]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_a_given_recipe_is_confirmed_and_the_records_give_the_same_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    given: dict[str, Any] = {"methods": None, "extra": (), "confirm": "Faster()", "study": "confirmed"}
    found = explored(folder, progress=lines.append, **given)
    assert (found.recipe.name, found.tuned) == ("Faster", BASELINE)
    assert found.result is not None
    assert found.result.pays
    assert [(one.variant.name, one.source) for one in found.verdicts] == [("Faster", "confirmation")]
    assert [one.variant.name for one in found.screened] == ["Faster"]
    assert {*found.costs} == {"noise", "screening", "confirmation"}
    assert any(line.startswith("The A/A runs and the tuning of the baseline take at most") for line in lines)
    assert "'--confirm=Faster()'" in found.command
    assert "--methods" not in found.command

    monkeypatch.setattr("composer.exploration.screening_stage.screen", None)
    monkeypatch.setattr("composer.trials.study.Running", None)  # nothing may start
    assert f"--folder={folder / 'confirmed'}" in found.command
    assert main(["explore", "--json", *shlex.split(found.command)[2:]]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.to_json()))


def test_a_recipe_that_crashes_is_an_error_before_the_pairs(folder: Path) -> None:
    lines: list[str] = []
    given: dict[str, Any] = {"methods": None, "extra": (), "study": "confirmed"}  # with its A/A runs
    with pytest.raises(ValueError, match=r"confirm: Crashing cannot be used: .*ZeroDivisionError.*\. Leave it out"):
        explored(folder, confirm=["Faster()", "Crashing()"], progress=lines.append, **given)
    assert not any(line.startswith("confirmation:") for line in lines)


@pytest.mark.slow
def test_a_killed_exploration_goes_on_with_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the first A/A run; what is recorded is not run again. The budget ends it after the second one."""
    target = learner(tmp_path)
    code = (
        "from tests.exploration.test_explore import *\n"
        f"explore(Target.from_command([{target.name!r}]), target=TARGET, folder={str(tmp_path / 'study')!r}, **CHOICE)"
    )
    records = tmp_path / "study" / "trials.jsonl"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True) as process:
        while not records.exists() or records.read_text().count("\n") < 2:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    known = {json.loads(line)["key"]: line for line in records.read_text().splitlines()}
    found = explored(tmp_path, budget=0.1)
    lines = records.read_text().splitlines()
    assert len(lines) > len(known)
    assert [line for line in lines if json.loads(line)["key"] in known] == list(known.values())
    monkeypatch.setattr("composer.trials.study.Running", None)
    assert explored(tmp_path, budget=0.1).to_json() == found.to_json()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "CrosEntropy<=0.4"}, r"metric='CrosEntropy'.*Did you mean 'eval/CrossEntropy'"),
        ({"target": "CrossEntropy>=0.4"}, "smaller values of CrossEntropy are better. Write CrossEntropy<=0.4"),
        ({"target": None, "within": "1%"}, "Give the metric: the program evaluates 'eval/"),
        ({"target": None, "quality_at": "1m", "metric": "Accurcy"}, "metric='Accurcy' is not a metric"),
        ({"extra": ["algorithms+=Fastr()"]}, "extra has 'algorithms.*'Fastr'"),
        ({"extra": ["algorithms+=EMA(half_lif='1ba')"]}, "extra has .*half_lif"),
        ({"methods": None, "extra": (), "confirm": "Fastr()"}, "confirm has 'algorithms.*'Fastr'"),
        ({"methods": None, "extra": (), "confirm": "EMA+BlurPool"}, "'BlurPool' cannot be used: .*convolution"),
    ],
)
def test_mistakes_about_the_program_are_found_before_it_trains(
    folder: Path, arguments: dict[str, Any], message: str
) -> None:
    lines: list[str] = []
    with pytest.raises(ValueError, match=message):
        explored(folder, progress=lines.append, **arguments)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": None}, "Give one goal: target .* got none"),
        ({"quality_at": "1m"}, "Give one goal.*got target and quality_at"),
        ({"target": "CrossEntropy<0.4"}, "target must be METRIC>=VALUE"),
        ({"metric": "CrossEntropy"}, "one too many"),
        ({"target": None, "within": "1"}, "within must be a percentage"),
        ({"target": None, "quality_at": "soon"}, "quality_at must be a positive duration"),
        ({"budget": "-1h"}, "budget must be a positive duration"),
        ({"pairs": 5}, "pairs must be at least 6"),
        ({"methods": ["Faster"]}, "methods must be one of"),
        ({"without": ["batch sizes"]}, "Did you mean 'batch size'"),
        ({"extra": ["algorithm+=Faster()"]}, "extra must be one of .*Did you mean 'algorithms'"),
        ({"extra": ["Faster()"]}, "A change has the form"),
        ({"extra": ["algorithms+=a.Faster()", "algorithms+=b.Faster()"]}, "'Faster' is there 2 times"),
        ({"changes": ["max_duratoin=1ep"]}, "changes must be one of .*Did you mean 'max_duration'"),
        ({"ranks": 0}, "ranks must be"),
        ({"confirm": "EMA"}, r"confirm gives the recipe itself, so that extra=.* is one too many"),
        ({"extra": (), "methods": ["SAM"], "confirm": "EMA"}, "so that methods=.* is one too many"),
        ({"extra": (), "confirm": ()}, "confirm must name at least one"),
        ({"extra": (), "confirm": "EMMA"}, "Did you mean 'EMA'"),
    ],
)
def test_mistakes_in_arguments_are_found_before_anything_starts(
    folder: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        explored(folder, progress=pytest.fail, **arguments)


def test_a_small_budget_gives_a_result_that_says_what_it_cannot_tell(folder: Path) -> None:
    found = explored(folder, budget=0.1)
    assert found.recipe == BASELINE
    assert found.plan.pairs == 0
    assert str(found).startswith("Nothing is confirmed: the budget did not suffice.")
    assert "does not suffice to confirm" in str(found)
    assert found.refused["Faster"] == "there was no time for it within the budget"


def test_near_the_final_value_of_the_baseline(folder: Path) -> None:
    found = explored(folder, target=None, within="40%", metric="CrossEntropy", budget=0.1)
    goal = found.plan.goal
    assert not goal.maximize
    assert goal.target == pytest.approx(1.4 * sum(found.plan.qualities) / len(found.plan.qualities), rel=1e-6)
    assert max(found.plan.times) < 1e3
    assert "--within=40%" in found.command


def test_a_program_that_fails_or_misses_the_target_is_an_error(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"does not train: ZeroDivisionError(.|\n)*train\.py"):
        explored(tmp_path, learner(tmp_path, "1 / 0"))
    with pytest.raises(BaselineError, match=r"did not reach CrossEntropy<=0\.0001"):
        explored(folder, target="CrossEntropy<=0.0001")
    with pytest.raises(BaselineError, match="choose a target that is harder to reach than CrossEntropy<=5"):
        explored(folder, target="CrossEntropy<=5")


def test_a_program_with_a_scheduler_of_torch_keeps_its_learning_rate(tmp_path: Path) -> None:
    text = """
t = make()
t.fit(schedulers=torch.optim.lr_scheduler.StepLR(t.state.optimizers[0], 100))
"""
    found = explored(tmp_path, learner(tmp_path, text), without=[], budget=0.1)
    assert found.refused["learning rate"].startswith("the program's StepLR was created with")


def test_variants_may_be_given_as_objects(folder: Path) -> None:
    extra = [Variant("sugar", ("algorithms+=Placebo()",), "placebo", late=True)]
    found = explored(folder, extra=extra, budget=0.1)
    assert "sugar" in found.refused


def test_a_string_is_no_command_line(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"program must be a list of words .* got 'train\.py'"):
        explore("train.py", target=TARGET)


def test_cpu_time_is_refused_on_an_accelerator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ProgramFacts(device="cuda", metrics=(("eval/CrossEntropy", False),))
    monkeypatch.setattr("composer.exploration.explore.program_facts", lambda *words, **options: facts)
    with pytest.raises(ValueError, match=r"clock='cpu' does not count the time of cuda; use clock='wall'\."):
        explored(folder, clock="cpu")
