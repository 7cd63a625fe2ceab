"""``composer fork`` runs the program of a run from a step on, as a new run with changes."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import pytest

from composer.checkpoint.at_step import CheckpointFacts, history_of
from composer.cli import fork as command
from composer.cli.fork_program import ForkOverrides, fork_program, save_state
from composer.cli.main import main
from composer.cli.replay import changes_of
from composer.trials.target import Target
from tests.cli.test_replay import PROGRAM, in_folder, logged_losses

PROGRAM = PROGRAM.replace("seed=7,", "seed=7, run_name='night',")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a program that was run by itself, as a user does."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", list(sys.argv))
        patch.setattr(sys, "path", list(sys.path))
        Target("script", "train.py", ("0.1",)).run()
    return folder


@pytest.fixture
def here(run, tmp_path, monkeypatch):
    """A copy of it, which may be changed."""
    shutil.copytree(run, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "copy"


def losses(folder: str) -> dict[int, float]:
    return logged_losses(Path(folder))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_in_processes_of_its_own(run):
    """The steps up to the step are trained again, the fork begins in the second of two calls of fit."""
    before = {name: files_of(run / name) for name in ("out", "night")}
    done = in_folder(run, "-m", "composer", "fork", "out", "--at", "13", "--set", "algorithms+=EMA()")
    assert done.stdout.splitlines()[-1] == "trained to 18"
    assert "night-fork-13 forks night at batch 13; checkpoints go to out-fork-13" in done.stderr
    assert {name: files_of(run / name) for name in before} == before
    names = {path.name for path in run.iterdir()} - {".cache", ".config"}  # the latter are in the home folder
    assert names == {"train.py", "out", "night", "out-fork-13", "night-fork-13"}
    found, logged = losses(str(run / "night-fork-13")), losses(str(run / "night"))
    assert found == {step: logged[step] for step in range(13, 18)}
    facts = history_of(str(run / "out-fork-13")).before
    assert facts is not None and facts.batch == 18 and facts.run_name == "night-fork-13"
    assert facts.forked_from == {
        "run_name": "night",
        "step": 13,
        "path": str(run / "out"),
        "changes": ["algorithms+=EMA()"],
        "by_command": True,
    }
    shutil.rmtree(run / "out-fork-13")
    shutil.rmtree(run / "night-fork-13")


def forked(at: int, *changes: str, source: str = "out", **more: str) -> None:
    words = [word for text in changes for word in ("--set", text)]
    options = [word for name, value in more.items() for word in (f"--{name}", value)]
    program = ["--", "train.py", "0.1"]  # the recorded one was started in the original folder
    assert main(["fork", source, "--at", str(at), *words, *options, *program]) == 0


def test_in_this_process(here, capsys):
    forked(15, "optimizers.lr=0.05")
    assert losses("night-fork-15")[15] == losses("night")[15]
    assert losses("night-fork-15")[17] != losses("night")[17]
    forked(15, "optimizers.lr=0.02", "max_duration=20ba")
    assert "night-fork-15-2 forks night" in capsys.readouterr().err
    assert max(losses("night-fork-15-2")) == 19
    files = files_of(here / "out-fork-15")
    forked(15, "optimizers.lr=0.05")  # again: it is complete
    assert "night-fork-15 continues night at batch 15" in capsys.readouterr().err
    assert files_of(here / "out-fork-15") == files
    assert main(["checkpoint", "inspect", "out-fork-15/latest-rank0.pt"]) == 0
    assert "forked from: night, batch 15" in capsys.readouterr().out
    # A replay of the fork has its changes.
    assert main(["replay", "out-fork-15-2", "--step", "19", "--", "train.py", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "SGD/group0 0.02" in out
    forked(20, "max_duration=21ba", "optimizers.lr=0.01", source="out-fork-15-2", name="again")
    origin = history_of("again").before
    assert origin is not None and origin.forked_from is not None
    assert origin.forked_from["changes"][-2:] == ["max_duration=21ba", "optimizers.lr=0.01"]
    assert len(origin.forked_from["changes"]) == 4


def test_an_interrupted_fork_continues(here, capsys):
    forked(12, "optimizers.lr=0.05", name="full")
    forked(12, "optimizers.lr=0.05", name="cut")
    (here / "cut/ep3-ba18-rank0.pt").unlink()
    (here / "cut/latest-rank0.pt").unlink()
    (here / "cut/latest-rank0.pt").symlink_to("ep2-ba15-rank0.pt")
    capsys.readouterr()
    forked(12, "optimizers.lr=0.05", name="cut")
    assert "cut continues night at batch 12" in capsys.readouterr().err
    one, other = (history_of(name).before for name in ("cut", "full"))
    assert one is not None and other is not None and one.batch == other.batch == 18
    assert losses("cut") == losses("full")


def test_a_checkpoint_of_a_step_between(here, capsys):
    target = Target("script", "train.py", ("0.1",))
    save_state(target, "out", 13, "state/between.pt", "night", last_fit=2)
    facts = history_of("state").before
    assert facts is not None and (facts.batch, facts.run_name, facts.missing) == (13, "night", ())
    fork_program(target, ForkOverrides("state/between.pt", 13, parent="out", name="fork", folder="fork"))
    assert losses("fork") == {step: loss for step, loss in losses("night").items() if step >= 13}


def start_here(ranks: int, words) -> None:
    """Run the part of the command that has a process of its own in this one."""
    assert ranks == 1
    main(list(words))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out", "--at", "0"], "at least 1; got 0"),
        (["out", "--at", "15", "-n", "0"], "--ranks must be at least 1"),
        (["nowhere", "--at", "3"], "no folder or checkpoint 'nowhere'"),
        (["out", "--at", "15", "--set", "optimisers.lr=1"], "no argument 'optimisers'. Did you mean 'optimizers'"),
        (["out", "--at", "15", "--set", "optimizers.lrr=1"], "no hyperparameter 'lrr'. Did you mean 'lr'"),
        (["out", "--at", "15", "--set", "run_name=x"], "use --name"),
        (["out", "--at", "13", "--set", "optimizers.lrr=1"], "no hyperparameter 'lrr'. Did you mean 'lr'"),
        (
            ["out", "--at", "13", "--set", "optimizers.lr=abc"],
            "is 0.1, so it must be a number; got 'abc'",
        ),
        (["out", "--at", "13", "--set", "train_dataloader.batchsize=2"], "Did you mean 'batch_size'"),
        (["out", "--at", "15", "--set", "max_duration=abc"], "'abc'"),
        (["out", "--at", "15", "--set", "max_duration=-5ba"], "max_duration must not be negative; got '-5ba'"),
        (["out", "--at", "19"], "not part of the run, which ends at batch 18"),
        (["out", "--at", "15", "--set", "lr"], "has the form NAME=VALUE"),
        (["out", "--at", "15", "--folder", "out/fork"], "in the folder of the run that it forks"),
        (["out", "--at", "15", "--folder", "night"], "'night' holds another run"),
        (["out", "--at", "15", "--foldr", "x"], "no option '--foldr'. Did you mean '--folder'?"),
    ],
)
def test_usage_errors(here, capsys, monkeypatch, arguments, message):
    before, names = files_of(here / "out"), set(here.iterdir())
    monkeypatch.setattr(command, "_start", start_here)
    with pytest.raises(SystemExit) as ended:
        main(["fork", *arguments, "train.py", "0.1"])
    assert ended.value.code == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert set(here.iterdir()) == names
    assert message in error
    assert error.endswith(" See composer fork --help.")
    assert files_of(here / "out") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "18"], "ends at batch 18, so that nothing is left to train. Train longer"),
        (["--at", "15", "--name", "night", "--folder", "elsewhere"], "'night' is the name of the run"),
    ],
)
def test_errors(here, capsys, arguments, message):
    before, names = files_of(here / "out"), set(here.iterdir())
    assert main(["fork", "out", *arguments, "--", "train.py", "0.1"]) == 1
    assert message in capsys.readouterr().err
    assert files_of(here / "out") == before
    assert set(here.iterdir()) == names


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('loggers="csv"', "loggers=CSVLogger('log.csv')", "--set loggers-=CSVLogger"),
        ("trainer.fit(duration", "Trainer(model=model); trainer.fit(duration", "several trainers"),
        ("trainer.fit(", "dict(", "without a call of Trainer.fit"),
    ],
)
def test_programs_that_cannot_be_forked(here, capsys, old, new, message):
    text = PROGRAM.replace(old, new).replace("import sys", "import sys\nfrom composer.loggers import CSVLogger")
    (here / "train.py").write_text(text)
    try:
        code = main(["fork", "out", "--at", "15", "--", "train.py", "0.1"])
    except SystemExit as ended:
        code = ended.code
    assert code == (2 if "--set" in message else 1)
    assert message in capsys.readouterr().err


def test_programs_that_fail(here, capsys):
    for text, code in (("1 / 0", 1), ("raise SystemExit(4)", 4)):
        (here / "train.py").write_text(text)
        with pytest.raises(SystemExit) as caught:
            main(["fork", "out", "--at", "15", "--", "train.py", "0.1"])
        assert caught.value.code == code


def test_ranks_are_started_by_the_command(here, monkeypatch, capsys):
    started: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(command, "_start", lambda ranks, words: started.append((ranks, list(words))))
    forked(13, "optimizers.lr=0.05", ranks="2")
    (first, one), (second, other) = started
    assert (first, second) == (1, 2)
    assert one[:4] == other[:4] == ["fork", "out", "--at", "13"]
    assert (
        "--save-state" in one
        and "--state" in other
        and other[-5:] == ["--set", "optimizers.lr=0.05", "--", "train.py", "0.1"]
    )
    monkeypatch.setattr("composer.dist.get_world_size", lambda: 2)
    with pytest.raises(SystemExit, match="2"):
        main(["fork", "out", "--at", "13"])
    assert "composer fork starts the ranks itself" in capsys.readouterr().err


def test_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = CheckpointFacts("ep1.pt", 9, run_name="night")

    def chosen(source: str, name: str | None = None, folder: str | None = None) -> tuple[str, str, bool]:
        given = argparse.Namespace(source=source, at=9, set=[], name=name, folder=folder)
        return command.choose_name(given, facts)

    assert chosen("runs/night/") == ("night-fork-9", "runs/night-fork-9", False)
    assert chosen("memory://a/night") == ("night-fork-9", "memory://a/night-fork-9", False)
    assert chosen(".")[1] == f"{tmp_path}-fork-9"
    assert chosen("runs/night", "calm") == ("calm", "runs/calm", False)
    assert chosen("runs/night", None, "here") == ("night-fork-9", "here", False)
    (tmp_path / "runs/night-fork-9").mkdir(parents=True)
    assert chosen("runs/night")[1] == "runs/night-fork-9"  # empty
    (tmp_path / "runs/night-fork-9/notes.txt").touch()
    assert chosen("runs/night") == ("night-fork-9-2", "runs/night-fork-9-2", False)


def test_changes_of_a_checkpoint_that_call_code_are_applied_only_where_the_run_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    program = {"kind": "script", "name": "train.py", "arguments": [], "folder": str(tmp_path)}

    def recorded(change: str, folder: str) -> CheckpointFacts:
        origin = {"run_name": "a", "step": 3, "path": "a", "changes": [change], "by_command": True}
        return CheckpointFacts("a.pt", 5, program={**program, "folder": folder}, forked_from=origin)

    assert changes_of(recorded("algorithms+=package.Method(1)", str(tmp_path))) == ("algorithms+=package.Method(1)",)
    assert changes_of(recorded("algorithms+=EMA()", "/elsewhere")) == ("algorithms+=EMA()",)
    for change in ("seed=os.system('true')", "callbacks=[EMA(), os . system ('true')]", "seed=main([])"):
        with pytest.raises(ValueError, match="started in '/elsewhere'"):
            changes_of(recorded(change, "/elsewhere"))
