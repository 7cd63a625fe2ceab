"""Part speed of the checks of a GPU: its tiny form runs, its arithmetic holds, and other work is found out."""

from __future__ import annotations

import importlib
import math
import re
import weakref
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import environment
from benchmarks.contenders import make_loader
from benchmarks.gpu import augmentations, compiler, contenders, gpt2, method_steps, resnet, speed, throughput, training
from benchmarks.gpu.contenders import CONTENDERS, Contender
from benchmarks.gpu.options import Options
from benchmarks.gpu.throughput import Runs
from benchmarks.gpu.training import Counts, Training
from benchmarks.gpu.workloads import workload
from tests.algorithms.cases import public_classes

TINY = Options(device="cpu", tiny=True, rounds=2, seconds=300)
COUNTS = Counts(warmup=2, settle=2, steps=3, turns=1)


class Here:
    """Answers as a process of its own would, without the seconds that starting one takes."""

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(self, target: str, **arguments: Any) -> Any:
        module, _, function = target.partition(":")
        try:
            return getattr(importlib.import_module(module), function)(**arguments)
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for module in (throughput, method_steps):
        monkeypatch.setattr(module, "Worker", Here)
    monkeypatch.setattr(environment, "call", lambda target, arguments, **_: Here().call(target, **arguments))
    # What the process of a training sets.
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    yield
    torch.backends.cudnn.benchmark = benchmark
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("work", ["gpt2", "resnet50"])
def test_throughput_in_tiny_form(work: str) -> None:
    names = [name for name in CONTENDERS if not name.startswith("transformers")]
    here = [name for name in contenders.present(work)[0] if name in names]
    report = throughput.measure(work, TINY, here)
    assert not report.failed
    assert [row[0] for row in report.rows] == [CONTENDERS[name].title for name in here]
    assert {row[-1] for row in report.rows} == {"the same"}
    assert all(row[1] > 0 and row[2] > 0 for row in report.rows)
    assert [goal.limit for goal in report.goals] == [pytest.approx(1 / 0.98), pytest.approx(1 / 1.1)]
    for name in here:
        found = report.samples[name]
        assert len(found["turns"]) == 2
        assert found["facts"]["updates"] == 2 + 2 * 2 * (2 + 3) + 2
        assert found["facts"]["logits"] == "torch.bfloat16"
    # Without a device the loops of the same mode do the same bit for bit.
    for mode in ("eager", "compiled"):
        losses = {report.samples[name]["facts"]["loss after"] for name in here if name.endswith(mode)}
        assert len(losses) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("in_process")
def test_the_trainer_of_transformers_does_the_same_work() -> None:
    pytest.importorskip("transformers")
    facts = {}
    for name in ("raw eager", "transformers eager"):
        made = Training(name, workload("gpt2", tiny=True), COUNTS, "cpu", "")
        made.start()
        made.wait()
        made.go()
        facts[name] = made.finish()
    assert throughput.works_alike(facts["transformers eager"], facts["raw eager"]) == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", [name for name in speed.CHECKS if name not in ("gpt2", "resnet50")])
def test_other_checks_in_tiny_form(name: str) -> None:
    report = speed.CHECKS[name](Options(device="cpu", tiny=True, rounds=1, seconds=300))
    assert not report.failed
    assert report.rows
    assert report.samples
    assert report.text()
    assert report.tables()


def _wrong(monkeypatch: pytest.MonkeyPatch, train: Any, work: str = "gpt2") -> str:
    """In what a training differs from that of the raw loop."""
    monkeypatch.setitem(CONTENDERS, "wrong", Contender("wrong", train, "torch"))
    facts = []
    for name in ("raw eager", "wrong"):
        made = Training(name, workload(work, tiny=True), COUNTS, "cpu", "")
        made.start()
        made.wait()
        made.go()
        facts.append(made.finish())
    return throughput.works_alike(facts[1], facts[0])


def _loop(job: contenders.Job, **changed: Any) -> None:
    optimizer = job.optimizer()
    for group in optimizer.param_groups:
        group["lr"] *= changed.get("rate", 1)
    for number, batch in enumerate(job.loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=changed.get("autocast", True)):
            loss = job.workload.loss(job.module, batch)
        loss.backward()
        if "clip" in changed:
            torch.nn.utils.clip_grad_norm_(job.module.parameters(), changed["clip"])
        if number != changed.get("without"):
            optimizer.step()


@pytest.mark.parametrize(
    ("changed", "work", "says"),
    [
        ({}, "gpt2", ""),
        ({"without": 3}, "gpt2", "updates"),
        ({"autocast": False}, "gpt2", "logits torch.float32"),
        ({"rate": 0.8}, "gpt2", "moved"),
        ({"clip": 0.1}, "resnet50", "moved"),
    ],
)
def test_other_work_is_found_out(monkeypatch, changed, work, says) -> None:
    found = _wrong(monkeypatch, lambda job: _loop(job, **changed), work)
    assert (says in found) if says else found == ""


def test_a_change_of_settings_is_found_out(monkeypatch) -> None:
    def train(job: contenders.Job) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        _loop(job)

    assert "settings" in _wrong(monkeypatch, train)


def test_a_library_that_fails_is_a_row_of_its_own(monkeypatch, in_process) -> None:
    def fail(job: contenders.Job) -> None:
        next(iter(job.loader))
        raise ValueError("no such thing")

    monkeypatch.setitem(CONTENDERS, "wrong", Contender("wrong", fail, "torch"))
    report = throughput.measure("gpt2", TINY, ["raw eager", "wrong"])
    assert [row[0] for row in report.rows] == ["hand-written loop, eager"]
    assert any("wrong: failed" in note and "no such thing" in note for note in report.notes)
    monkeypatch.setitem(CONTENDERS, "composer eager", Contender("composer", fail, "torch"))
    assert "no such thing" in throughput.measure("gpt2", TINY, ["raw eager", "composer eager"]).failed


def test_a_contender_that_fails_lets_go_of_its_model(monkeypatch) -> None:
    def fail(job: contenders.Job) -> None:
        raise ValueError("no such thing")

    monkeypatch.setitem(CONTENDERS, "wrong", Contender("wrong", fail, "torch"))
    made = Training("wrong", workload("gpt2", tiny=True), COUNTS, "cpu", "")
    module = weakref.ref(made.module)
    made.start()
    with pytest.raises(RuntimeError, match="no such thing"):
        made.wait()
    assert module() is None
    assert not made.turns.batches


def test_where_nothing_compiles_the_compiled_loops_are_left_out_by_name(monkeypatch, in_process) -> None:
    def fail(device: str, backend: str) -> None:
        raise OSError("no C compiler found")

    monkeypatch.setattr(compiler, "compile_something", fail)
    report = throughput.measure("gpt2", TINY, ["raw eager", "raw compiled", "composer eager"])
    assert [row[0] for row in report.rows] == ["hand-written loop, eager", "composer, eager"]
    assert any(
        note.startswith("hand-written loop, compiled: left out") and "no C compiler" in note for note in report.notes
    )
    assert not report.failed
    assert "no C compiler" in compiler.measure(TINY).failed


def test_the_last_ones_stay_out_where_time_is_short(in_process) -> None:
    short = Options(device="cpu", tiny=True, rounds=2, seconds=throughput._MARGIN)
    report = throughput.measure("gpt2", short, ["raw eager", "accelerate eager"])
    assert [row[0] for row in report.rows] == ["hand-written loop, eager"]
    assert any("Accelerate" in note and "no time" in note for note in report.notes)


def test_turns_time_the_steps_between_their_marks(monkeypatch) -> None:
    """Each loop, however far it fetches ahead, is held before each turn, and times the same number of batches."""
    clock = iter(range(1000))
    monkeypatch.setattr(training, "_now", lambda device: float(next(clock)))
    turns = training.Turns({"device": ["d"], "host": ["h"]}, Counts(2, 1, 2, 2), "cpu")
    held: list[int] = []
    turns._wait = lambda: held.append(len(seen))
    seen: list[str] = []
    found = []
    for index in range(len(turns)):
        seen.append(turns[index])
        if index in (2 + 6, 2 + 12):
            found.append(dict(turns.stretches))
    assert "".join(seen) == "dd" + "dddhhh" * 2 + "d"
    assert held == [2, 8, 14]
    assert [list(each) for each in found] == [["device", "host"]] * 2
    assert all(wall == 0.5 for each in found for wall, _ in each.values())  # a tick, over two steps


def test_goals_are_unclear_where_the_work_differs() -> None:
    turns = [{source: [seconds, math.nan] for source in training.SOURCES} for seconds in (1.0, 1.0)]
    runs = {name: Runs(turns=turns) for name in throughput.NEEDED}
    assert [goal.met for goal in throughput._goals(runs, {})] == [True, False]
    for name in (throughput.RAW, throughput.OURS_COMPILED):
        goals = throughput._goals(runs, {name: "updates"})
        assert goals[-1].verdict.startswith("unclear: the work of")
    runs[throughput.RAW] = Runs(turns=[turns[0], {source: [2.0, math.nan] for source in training.SOURCES}])
    assert "varied" in throughput._goals(runs, {})[1].verdict


def test_gpt2_has_124_million_parameters() -> None:
    with torch.device("meta"):
        model = gpt2.GPT2(gpt2.Shape())
        size = sum(parameter.numel() for parameter in model.parameters())
        assert model.head.weight is model.tokens.weight
    assert size == 50304 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768
    assert round(size / 1e6) == 124


def test_resnet_is_that_of_the_paper() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = resnet.ResNet(resnet.Shape())
        model(torch.empty(1, 3, 224, 224))
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert counter.get_total_flops() / 2e9 == pytest.approx(4.09, abs=0.01)
    # Backward twice of that, without the gradient of the images.
    assert resnet.flops(resnet.Shape()) / 1e9 == pytest.approx(3 * 2 * 4.089 - 2 * 0.118, abs=0.02)


@pytest.mark.parametrize("shape", [gpt2.TINY, gpt2.Shape(128, 32, 48, 3, 4)])
def test_flops_of_gpt2_are_those_that_torch_counts(shape: gpt2.Shape) -> None:
    (batch,) = gpt2.batches(shape, 2, 1)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        gpt2.GPT2(shape)(**batch).backward()
    assert counter.get_total_flops() == 2 * shape.sequence * gpt2.flops(shape)


def test_mfu_of_a_known_case() -> None:
    # GPT-2 124M at 1 million tokens a second: 1e6 * (6 * 123.6e6 + 12 * 12 * 1024 * 768) = 855 TFLOP/s
    flops = gpt2.flops(gpt2.Shape())
    assert flops / 1e6 == pytest.approx(6 * 123.57 + 113.25, abs=0.1)
    assert throughput.mfu(1e6, flops, 989.4e12) == pytest.approx(0.8638, abs=1e-3)
    assert math.isnan(throughput.mfu(1e6, flops, None))


def test_batches_are_the_same_each_time_and_follow_a_rule() -> None:
    first, again = (gpt2.batches(gpt2.TINY, 3, 2) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for one, other in zip(first, again, strict=True) for name in one)
    assert all(torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1]) for batch in first)
    images, _ = resnet.batches(resnet.TINY, 3, 1)[0]
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_augmentations_cover_each_method_with_a_form_on_the_device() -> None:
    assert set(augmentations.FORMS) == set(augmentations.methods_on_device())


def test_each_method_is_timed_or_said_why_not() -> None:
    assert set(method_steps._methods()) | set(method_steps.NOT_TIMED) == set(public_classes())
    assert not set(method_steps._methods()) & set(method_steps.NOT_TIMED)


def test_without_a_library_its_loops_are_left_out_by_name(monkeypatch) -> None:
    monkeypatch.setattr(environment, "has", lambda module: module not in ("accelerate", "lightning"))
    names, missing = contenders.present("gpt2")
    assert names == [*throughput.NEEDED, "composer regional", "composer float8"]
    assert missing == ["accelerate", "lightning", "transformers"]
    assert contenders.present("resnet50") == (list(throughput.NEEDED), ["accelerate", "lightning"])
    monkeypatch.setattr(environment, "has", lambda module: module != "torchao")
    names, missing = contenders.present("gpt2")
    assert "composer regional" in names and "composer float8" not in names and missing == ["torchao"]


def test_peak_is_that_of_the_data_sheet_and_of_a_product() -> None:
    found = importlib.import_module("benchmarks.gpu.peak").measure("cpu", tiny=True)
    assert found["sheet"] is None
    assert found["measured"] > 0


def test_columns_fit_the_rows() -> None:
    text = throughput._notes(
        workload("resnet50", tiny=True),
        TINY,
        {"settle": 1, "steps": 1, "warmup": 1},
        {
            "sheet": 989.4e12,
            "measured": 7e14,
        },
        2,
    )
    assert re.search(r"data sheet.*989 TFLOP/s.*700 TFLOP/s", " ".join(text))
    assert make_loader([1], 1, 0, lambda: None).dataset.length == 11
