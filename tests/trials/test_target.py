"""Programs run in a trial as `python` would run them, and functions as they are."""

from __future__ import annotations

import functools
import sys
import textwrap
from pathlib import Path

import pytest

from composer import Trainer, _lazy
from composer.trials import ForkServer, Target
from composer.trials.fork_server import can_fork
from tests.common import Regression, regression_data
from tests.trials.programs import START, run, script

forks = pytest.mark.skipif(not can_fork(), reason="forks processes")


def make_trainer() -> Trainer:
    return Trainer(model=Regression(), train_dataloader=regression_data(), max_duration="1ba")


def make_nothing() -> None: ...


def make_by_arguments() -> Trainer:
    assert sys.argv[1:] == ["--lr", "0.1"], sys.argv
    return make_trainer()


@forks
def test_a_script_finds_what_it_finds_with_python(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "sizes.py").write_text("FEATURES = 4\n")
    (folder / "sibling.py").write_text("from package.sizes import FEATURES\n")
    text = """
import pickle
from sibling import FEATURES
class Mine(TensorDataset): pass
if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Mine(torch.ones(1)))).tensors[0] == 1
    assert sys.argv == ["project/train.py", "--lr", "0.1", "a b"], sys.argv
    assert open("settings.txt").read() == "here"
    assert __file__ == os.path.abspath("project/train.py"), __file__
    assert sys.path[0] == os.path.realpath("project")
    data = Mine(torch.randn(8, FEATURES), torch.randint(2, (8,)))
    workers = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert input_fails()
    trainer(train_dataloader=workers).fit()
"""
    input_fails = "def input_fails():\n    try: input()\n    except EOFError: return True\n"
    script(folder, input_fails + text)
    (tmp_path / "settings.txt").write_text("here")
    monkeypatch.chdir(tmp_path)  # after the server was started
    target = Target.from_command(["project/train.py", "--lr", "0.1", "a b"])
    record = run(tmp_path, target, server)
    assert record.is_completed, record.details
    assert {Path(path).name for path in record.sources} >= {"train.py", "sibling.py", "sizes.py", "__init__.py"}


@forks
def test_a_module(tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.py").write_text("FEATURES = 4\n")
    checks = "assert (__name__, sys.argv[1]) == ('__main__', '--x')"
    (package / "train.py").write_text(f"{START}\nfrom .model import FEATURES\n{checks}\ntrainer().fit()\n")
    monkeypatch.chdir(tmp_path)
    record = run(tmp_path, Target.from_command(["-m", "mypackage.train", "--x"]), server)
    assert record.is_completed, record.details


@forks
def test_a_configuration(tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonargparse")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        textwrap.dedent("""
        model:
          class_path: tests.common.Regression
        train_dataloader:
          class_path: tests.trials.test_target.Data
        max_duration: 1ba
        """)
    )
    record = run(tmp_path, Target.from_command(["train", "run.yaml"]), server)
    assert record.is_completed, record.details


class Data(list):
    """Batches that a configuration can name."""

    def __init__(self) -> None:
        super().__init__(regression_data())


@forks
def test_functions(tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    importable = Target.from_function(make_trainer)
    assert importable.name == "tests.trials.test_target:make_trainer"
    assert run(tmp_path, importable, server).is_completed
    (tmp_path / "elsewhere.py").write_text(
        "from tests.trials.test_target import make_trainer as make\ndef f(): return make()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import elsewhere  # pyright: ignore[reportMissingImports]

    assert run(tmp_path, Target.from_function(elsewhere.f), server).is_completed, "the path of this process is used"
    batches = regression_data()
    closure = Target.from_function(lambda: Trainer(model=Regression(), train_dataloader=batches, max_duration="1ba"))
    assert closure.kind == "pickle"
    assert run(tmp_path, closure, server).is_completed
    assert Target.from_function(functools.partial(make_trainer)).kind == "pickle"
    record = run(tmp_path, Target.from_function(make_nothing), server)
    assert (
        record.error == "TypeError: make_trainer must return a Trainer which is not fitted yet; it returned NoneType."
    )


@forks
def test_functions_find_the_arguments_of_the_script(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)  # xdist has no script
    targets = [Target.from_function(make_by_arguments), Target.from_function(lambda: make_by_arguments())]
    for target in targets:
        record = run(tmp_path, target, server)
        assert record.is_completed, record.error
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.2"])
    assert Target.from_function(make_by_arguments).fingerprint != targets[0].fingerprint
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert Target.from_function(make_by_arguments).arguments == (), "those of a notebook's kernel"


def test_a_function_of_main_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(make_trainer, "__module__", "__main__")
    assert Target.from_function(make_trainer).kind == "pickle"


def test_a_function_that_was_replaced_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    function = make_nothing
    monkeypatch.setattr(sys.modules[__name__], "make_nothing", make_trainer)
    assert Target.from_function(function).kind == "pickle"


def test_without_cloudpickle_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(_lazy.MissingConditionalImportError, match=r"composer-torch\[trials\]"):
        Target.from_function(lambda: None)


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ([], ValueError, "No script was given"),
        (["-m"], ValueError, "No module was given"),
        (["no_such_program"], FileNotFoundError, "no_such_program"),
    ],
)
def test_commands_without_a_program(words: list[str], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Target.from_command(words)


def test_other_errors() -> None:
    with pytest.raises(ValueError, match="fit must be at least 1"):
        Target("script", "train.py", fit=0)
    with pytest.raises(TypeError, match="make_trainer must be a function"):
        Target.from_function(3)  # type: ignore[arg-type]


def test_the_fingerprint_follows_the_program(tmp_path: Path) -> None:
    target = script(tmp_path, "first")
    before = target.fingerprint
    assert before == target.fingerprint
    script(tmp_path, "second")
    assert target.fingerprint != before
    config = tmp_path / "run.yaml"
    config.write_text("a")
    with_config = Target("module", "composer.hparams", (str(config),))
    before = with_config.fingerprint
    config.write_text("b")
    assert with_config.fingerprint != before


def test_the_command_is_told_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.py").touch()
    given = ["a b.py", "--lr", "0.1", "--api-key", "abc", "--out", "sftp://me:hunter2@host/x"]
    assert Target.from_command(given).command == "'a b.py' --lr 0.1 --api-key '***' --out 'sftp://me:***@host/x'"
    assert Target.from_command(["-m", "timeit", "-n", "1"]).command == "-m timeit -n 1"
    assert Target("function", "package.module:make").command == "package.module:make"
    assert Target("pickle", "gASV").command == "a function"
