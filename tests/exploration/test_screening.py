"""Facts of a program, and what a step of its variants costs, with real trials."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from composer.exploration.program_facts import ProgramFacts
from composer.exploration.screening import Screened, program_facts, screen
from composer.exploration.variant import Variant
from composer.trials import ForkServer
from composer.trials.workspace import Workspace
from tests.exploration.programs import program
from tests.trials.programs import gone


def test_facts_of_a_program(tmp_path: Path, server: ForkServer) -> None:
    text = "from composer.algorithms import SqueezeExcite\nmake(algorithms=[SqueezeExcite()]).fit()"
    facts = program_facts(program(tmp_path, text), Workspace(tmp_path / "study", server))
    assert (facts.inputs, facts.labels, facts.batch_size, facts.steps) == ("images", "classes", 8, 48)
    assert facts.has_convolutions
    assert facts.learning_rates == (0.05,)
    assert facts.algorithms == ("SqueezeExcite",)
    assert dict(facts.metrics) == {"eval/MulticlassAccuracy": True, "eval/CrossEntropy": False}
    assert len(facts.without_effect) == 1  # of the program itself: it has no convolution that is large enough


@pytest.mark.parametrize(
    "changes",
    [
        "compile_config={'backend': 'eager'}",
        "compile_config={'regional': True, 'backend': 'eager'}",
        "model=torch.compile(model, backend='eager')",
    ],
)
def test_program_that_compiles_its_model(changes: str, tmp_path: Path, server: ForkServer) -> None:
    text = f"""
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x).relu()

blocks = [Block() for _ in range(2)]
model = ComposerClassifier(nn.Sequential(nn.Flatten(), *blocks, nn.Linear(64, 2)), num_classes=2)
make(**{{"model": model, **dict({changes})}}, optimizers=torch.optim.SGD(model.parameters(), lr=0.05)).fit()
"""
    assert program_facts(program(tmp_path, text), Workspace(tmp_path / "study", server)).is_compiled


def test_a_schedule_that_keeps_its_learning_rates_is_found(tmp_path: Path, server: ForkServer) -> None:
    text = """
t = make()
t.fit(schedulers=torch.optim.lr_scheduler.StepLR(t.state.optimizers[0], 5))
"""
    assert program_facts(program(tmp_path, text), Workspace(tmp_path / "study", server)).fixed_schedule == "StepLR"


def test_a_program_that_does_not_train_is_an_error_with_its_traceback(tmp_path: Path, server: ForkServer) -> None:
    with pytest.raises(RuntimeError, match=r"does not train: ZeroDivisionError(.|\n)*train\.py"):
        program_facts(program(tmp_path, "1 / 0"), Workspace(tmp_path / "study", server))


def test_variants_are_measured_or_refused(tmp_path: Path, server: ForkServer) -> None:
    variants = [
        Variant("SAM", ("algorithms+=SAM()",)),
        Variant("no effect", ("algorithms+=SqueezeExcite()",)),
        Variant("unknown", ("optimizers.rate=1",)),
        Variant("batch", ("train_dataloader.batch_size=16",), "batch_size"),
    ]
    text = "from composer.callbacks import EarlyStopper\nmake(callbacks=[EarlyStopper('MulticlassAccuracy')]).fit()"
    where = Workspace(tmp_path / "study", server)
    found = screen(program(tmp_path, text), variants, ProgramFacts(), where, rounds=3, steps=6, clock="cpu")
    by_name = {one.variant.name: one for one in found}
    assert list(by_name) == [one.name for one in variants]
    assert by_name["SAM"].speed is not None
    assert by_name["SAM"].speed.value < 0.9  # two forward and backward passes
    assert by_name["batch"].is_usable
    assert 0.5 < by_name["batch"].memory < 2
    assert "NoEffectWarning" in by_name["no effect"].error
    assert "no hyperparameter 'rate'" in by_name["unknown"].error
    assert math.isnan(by_name["unknown"].memory)
    assert all(one.cpu_seconds > 0 for one in found)
    assert Screened.from_json(found[0].variant, found[0].to_json()) == found[0]
    assert by_name["unknown"].to_json()["memory"] is None
    assert gone(str(tmp_path))


# Its first step takes long, as where it is compiled.
STARTS_LATE = """
import time
from composer import Algorithm

class StartsLate(Algorithm):
    def before_forward(self, state, logger):
        if state.timestamp.batch == 0:
            end = time.process_time() + 0.6
            while time.process_time() < end:
                pass
"""


def test_what_a_variant_takes_to_start_is_known_apart(tmp_path: Path, server: ForkServer) -> None:
    target = program(tmp_path, f"{STARTS_LATE}\nmake().fit()")
    variants = [Variant("late", ("algorithms+=StartsLate()",)), Variant("SAM", ("algorithms+=SAM()",))]
    late, sam = screen(target, variants, ProgramFacts(), Workspace(tmp_path / "study", server), rounds=3, clock="cpu")
    assert late.speed is not None
    assert late.speed.value > 0.7
    assert 0.5 < late.startup < 0.9
    assert 0 <= sam.startup < 0.3
    assert Screened.from_json(late.variant, late.to_json()) == late


def test_a_program_that_fails_cannot_be_screened(tmp_path: Path, server: ForkServer) -> None:
    with pytest.raises(RuntimeError, match="does not train: ZeroDivisionError"):
        screen(program(tmp_path, "1 / 0"), [Variant("a")], ProgramFacts(), Workspace(tmp_path / "study", server))
