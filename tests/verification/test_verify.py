"""``verify`` finds planted faults, names their causes, and reports nothing of sound trainers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import composer
from composer.algorithms import EMA, ChannelsLast, MixUp
from composer.trials import ForkServer
from composer.verification.causes import CAUSES
from composer.verification.verify import CHECKS
from tests.verification.faults import FAULTS
from tests.verification.parts import BATCH, Classifier, build
from tests.verification.running import CHECK_OF, run_checks

# One or two of each cause and of each check; `benchmarks/verification.py` runs all of them with all checks.
CHOSEN = [
    "batch_dice",
    "batchnorm_in_evaluation",
    "constant_for_compiler",
    "contrastive_loss",
    "counter_of_optimizer",
    "counts_tuple_entries",
    "data_counts_rows",
    "declared_setting_not_neutral",
    "divided_twice",
    "drops_last_sample",
    "extra_state_halved",
    "forward_in_place",
    "generator_of_collate",
    "half_gradient_in_bf16",
    "hand_token_mean",
    "hard_examples",
    "logger_draws_numbers",
    "loss_by_global_list",
    "loss_by_running_mean",
    "memory_bank",
    "method_without_state",
    "nested_branch_for_compiler",
    "neutral_method_scales",
    "numpy_mask_by_step",
    "racy_forward",
    "random_in_state_dict",
    "reseeds_in_forward",
    "sampler_repeats",
    "scaled_decay",
    "scaled_next_to_decay",
    "schedule_in_a_closure",
    "sequence_in_workers",
    "split_mixes_targets",
    "state_forgets_field",
    "stream_in_each_worker",
    "stream_without_state",
    "summed_loss",
    "summed_penalty",
    "unsafe_variance",
    "unseeded_augmentation",
    "unseeded_initialization",
    "untied_on_load",
    "values_clipped_in_hooks",
    "variance_of_one",
    "weights_edited_on_rank_0",
    "wrong_num_replicas",
]


_EXPECTED = ("samples_interact", "state_per_microbatch")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_planted_fault_is_found_and_named(name: str, server: ForkServer) -> None:
    fault = FAULTS[name]
    checks = [check for one in fault.checks for check in CHECK_OF[one]]
    report = run_checks(f"tests.verification.faults:{name}", server, list(dict.fromkeys(checks)))
    found = [finding for finding in report.findings if finding.cause in fault.causes]
    assert found, str(report)
    assert all(finding.status in ("failed", "expected") for finding in found)
    assert not report.ok or found[0].cause in _EXPECTED
    assert fault.cause not in _EXPECTED or not report.causes & {"loss_scale", "ignored_samples"}, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("number", [7, 9, 14])
def test_sound_trainers_are_not_reported(number: int, server: ForkServer) -> None:
    report = run_checks(f"tests.verification.sound:case_{number}", server)
    assert report.ok, str(report)
    assert {finding.check.partition("-")[0] for finding in report.findings} >= set(CHECKS) - {"methods"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("attends_in_float32", ["microbatch", "ddp", "compile"]),
        ("divides_batch_size", ["ddp", "resume_ranks"]),
        ("teacher_in_callback", ["callbacks", "ddp"]),
        ("generator_of_noise", ["microbatch"]),
        ("unused_generator", ["random"]),
        ("same_size_on_ranks", ["random"]),
    ],
)
def test_sound_programs_are_not_reported(name: str, checks: list[str], server: ForkServer) -> None:
    report = run_checks(f"tests.verification.sound_programs:{name}", server, checks)
    assert report.ok, str(report)
    assert not {"samples_interact", "lost_samples"} & {finding.cause for finding in report.findings}


def test_checks_in_float64_are_undecided_if_the_program_fails_in_it(server: ForkServer) -> None:
    path = "tests.verification.sound_programs:no_kernel_for_float64"
    report = run_checks(path, server, ["same", "microbatch"])
    status = {finding.check: finding.status for finding in report.findings}
    assert status.pop("same") == "passed", str(report)
    assert set(status.values()) == {"undecided"}, str(report)
    assert "no kernel for float64" in str(report)
    assert not report.ok and not report.failures


def test_resumption_is_that_of_a_killed_run(server: ForkServer) -> None:
    """The step is that of the program, in the middle of an epoch; a file that was being written is there."""
    path = "tests.verification.sound:case_7"
    found: list[list[str]] = []
    for _ in range(2):
        report = run_checks(path, server, ["resume", "reload"])
        assert report.ok, str(report)
        found.append([finding.summary for finding in report.findings if finding.status == "passed"])
    assert found[0] == found[1]
    assert re.fullmatch("killed after step 6, resumed at step [35]: equal bit for bit", found[0][0])


@pytest.mark.parametrize(
    ("name", "named", "where"),
    [
        ("state_never_loaded", "NeverLoads: seen", "state/callbacks/NeverLoads/seen of the second checkpoint"),
        ("extra_state_halved", "net.2 (Rounds)", "state/model/net.2._extra_state of the second checkpoint"),
    ],
)
def test_reload_names_the_first_entry_that_differs(server: ForkServer, name: str, named: str, where: str) -> None:
    report = run_checks(f"tests.verification.faults:{name}", server, ["reload"])
    (finding,) = report.failures
    assert (finding.check, finding.cause) == ("reload", "checkpoint_not_stable")
    assert (finding.name, finding.where) == (named, where)


@pytest.mark.parametrize("name", ["counter_around_a_layer", "counter_of_a_class", "counter_of_itertools"])
def test_the_counter_that_matters_is_named(server: ForkServer, name: str) -> None:
    report = run_checks(f"tests.verification.faults:{name}", server, ["resume"])
    (finding,) = report.failures
    assert (finding.cause, finding.name) == ("unsaved_module_state", FAULTS[name].named), str(report)


@pytest.mark.slow
def test_compiled_module_is_named(server: ForkServer) -> None:
    report = run_checks("tests.verification.faults:nested_branch_for_compiler", server, ["compile"])
    assert [finding.name for finding in report.failures] == ["net.2.1.branch (Approximate)"]


def test_methods_without_a_neutral_setting_are_skipped_with_the_reason(server: ForkServer) -> None:
    report = run_checks(f"{__name__}:with_methods", server, ["methods"])
    found = {(finding.check, finding.status): finding.summary for finding in report.findings}
    assert found["methods", "skipped"] == "ChannelsLast has no neutral setting: " + (
        "it has no setting; the kernels of another memory format round differently"
    )
    assert {check for check, status in found if status == "passed"} == {"neutral-MixUp", "without-EMA"}


def test_methods_that_cannot_be_sharded_are_skipped_with_the_reason(server: ForkServer) -> None:
    report = run_checks(f"{__name__}:with_methods", server, ["fsdp"])
    assert report.ok, str(report)
    assert {(finding.check, finding.status): finding.summary for finding in report.findings}["fsdp", "skipped"] == (
        "ChannelsLast requires unsharded parameters: torch shards only weights in contiguous memory format."
    )


def with_methods():
    return build(algorithms=[ChannelsLast(), MixUp(), EMA()])


class Scaled(torch.autograd.Function):
    """The identity, whose backward pass depends on the size of the microbatch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (len(gradient) / BATCH)


class WrongBackward(Classifier):
    def forward(self, batch):
        return self.net[1:](Scaled.apply(self.net[0](batch[0])))


def with_wrong_backward():
    return build(WrongBackward)


def test_a_wrong_backward_pass_is_no_comparison_of_samples(server: ForkServer) -> None:
    report = run_checks(f"{__name__}:with_wrong_backward", server, ["microbatch", "ddp"])
    assert report.causes == {"gradients_modified"}, str(report)
    assert {finding.name for finding in report.failures} == {"what changes the gradient of net.0.weight"}
    assert {finding.check for finding in report.failures} >= {"microbatch-4", "ddp"}, str(report)
    assert "the loss and its gradients at the outputs agree" in str(report)


@pytest.mark.slow
def test_an_order_by_hash_is_told_from_randomness(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A Python of its own cannot import what `apart` makes importable in this one.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if Path(each).name != "apart"])
    report = run_checks("tests.verification.faults:rows_of_a_set", server, ["same"], fresh=True)
    (finding,) = report.failures
    assert (finding.cause, finding.name) == ("order_by_hash", "FromSet"), str(report)
    assert "PYTHONHASHSEED=0" in str(finding.evidence)


def test_report_as_text_and_json(server: ForkServer) -> None:
    report = run_checks("tests.verification.faults:plain_tensor", server, ["resume"])
    text = str(report)
    assert "failed    resume: the resumed run differs from the uninterrupted one" in text
    assert "likely cause: A checkpoint does not restore net.2.mean. [unsaved_module_state]" in text
    assert CAUSES["unsaved_module_state"].remedy in text
    told = json.loads(json.dumps(report.to_json()))
    assert not told["ok"]
    assert [finding["cause"] for finding in told["findings"] if finding["status"] == "failed"] == [
        "unsaved_module_state"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 2}, "steps must be at least 3, to resume in the middle; got 2"),
        ({"checks": ["resumes"]}, "checks must be one of .*, but got 'resumes'. Did you mean 'resume'?"),
    ],
)
def test_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        composer.verify(["train.py"], **arguments)


def test_programs_that_do_not_train(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("1 / 0\n")
    with pytest.raises(RuntimeError, match="The program does not train: ZeroDivisionError: division by zero"):
        composer.verify([str(script)], progress=False)
