"""The report as text: one entry for each cause, in a fixed order, with a verdict."""

from __future__ import annotations

import re

import pytest

from composer.verification import CAUSES, Finding, Report

LOSS = [
    Finding(
        check,
        "failed",
        f"the gradients are {factor:.4g} times as large",
        "loss_scale",
        "the loss",
        f"step 0, gradient of w (relative difference {1 - factor:.2g})",
        ("the loss is scaled by the same factor",),
        factor,
    )
    for check, factor in (("microbatch-16", 0.5), ("microbatch-8", 0.25), ("ddp", 0.5))
]


def text(*findings: Finding) -> list[str]:
    return str(Report(list(findings), seconds=24.3)).splitlines()


def test_failures_with_the_same_cause_and_name_are_one_entry() -> None:
    shown = text(*LOSS)
    assert shown[:2] == [
        "failed    microbatch-16, microbatch-8, ddp: the gradients are 0.5, 0.25 and 0.5 times as large",
        "          first difference in microbatch-16: step 0, gradient of w (relative difference 0.5)",
    ]
    assert shown[2].startswith("          likely cause: The scale of the gradients")
    assert shown[2].endswith("[loss_scale]")
    assert shown[3] == "          evidence: the loss is scaled by the same factor"
    assert shown[4] == f"          remedy: {CAUSES['loss_scale'].remedy}"
    assert shown[5:] == ["FAILED: 3 checks, 1 cause (loss_scale), in 24 s"]


def test_failures_of_other_names_are_other_entries() -> None:
    unsaved = [Finding("resume", "failed", "differs", "unsaved_module_state", name) for name in ("net.0.n", "net.1.n")]
    shown = text(*unsaved)
    assert sum(line.startswith("failed ") for line in shown) == 2
    assert "A checkpoint does not restore net.1.n. [unsaved_module_state]" in shown[4]
    assert shown[-1] == "FAILED: 1 check, 1 cause (unsaved_module_state), in 24 s"


def test_other_checks_by_status_and_the_same_text_once() -> None:
    equal = "6 steps are equal bit for bit"
    shown = text(
        Finding("tp", "skipped", "the run has no plan"),
        Finding("same", "passed", equal),
        *(Finding("microbatch", "expected", "in evaluation mode", "batch_statistics", f"net.{i}") for i in range(7)),
        Finding("logging", "passed", equal),
        LOSS[0],
        Finding("evaluation", "skipped", "the run does not evaluate"),
    )
    assert [line.split()[0] for line in shown if not line.startswith(" ")] == [
        "failed",
        "expected",
        "passed",
        "skipped",
        "FAILED:",
    ]
    at = next(i for i, line in enumerate(shown) if line.startswith("expected"))
    assert shown[at:] == [
        "expected  microbatch: in evaluation mode",
        "          reason: The statistics of batch normalization depend on the size of a microbatch: "
        "net.0, net.1, net.2, net.3, net.4, 2 more. [batch_statistics]",
        f"passed    same, logging: {equal}",
        "skipped   tp (the run has no plan), evaluation (the run does not evaluate)",
        "FAILED: 1 check, 1 cause (loss_scale), in 24 s; 1 expected, 2 passed, 2 skipped",
    ]


def test_long_reasons_have_lines_of_their_own() -> None:
    shown = text(*(Finding(name, "skipped", f"{name} because of {'x' * 60}") for name in ("tp", "ddp")))
    assert [line[:14] for line in shown] == ["skipped   tp (", "          ddp ", "OK: no check f"]


def test_checks_without_an_answer_are_no_success() -> None:
    why = "the program fails in float64, in which runs are compared; no kernel"
    report = Report(
        [Finding("same", "passed", "equal"), *(Finding(each, "undecided", why) for each in ("ddp", "fsdp"))]
    )
    assert str(report).splitlines() == [
        f"undecided ddp, fsdp: {why}",
        "passed    same: equal",
        "UNDECIDED: 2 checks gave no answer, in 0 s; 1 passed",
    ]
    assert not report.ok and not report.to_json()["ok"]
    assert not report.failures


def test_a_failure_prevails_over_checks_without_an_answer() -> None:
    shown = text(Finding("ddp", "undecided", "no kernel"), LOSS[0])
    assert [line.split()[0] for line in shown if not line.startswith(" ")] == ["failed", "undecided", "FAILED:"]
    assert shown[-1] == "FAILED: 1 check, 1 cause (loss_scale), in 24 s; 1 undecided"


def test_a_traceback_keeps_its_lines_and_errors_are_one_line() -> None:
    evidence = 'File "[bold]x.py"\n    1 / 0\nZeroDivisionError'
    shown = text(Finding("ddp", "failed", "the run fails", "trial_failed", "[red]\n  no", evidence=(evidence,)))
    assert "[red] no. [trial_failed]" in shown[1]
    assert shown[2:5] == [
        '          evidence: File "[bold]x.py"',
        "                        1 / 0",
        "                    ZeroDivisionError",
    ]


def test_advice_of_a_finding_replaces_the_remedy() -> None:
    finding = Finding("ddp", "failed", "differs", "ragged_mean", advice="Count batch['y'].")
    assert text(finding)[-2] == "          remedy: Count batch['y']."
    told = finding.to_json()
    assert told["remedy"] == "Count batch['y']."
    assert "advice" not in told


def test_json_has_each_finding() -> None:
    report = Report([*LOSS, Finding("tp", "skipped", "no plan")])
    assert [found["check"] for found in report.to_json()["findings"]] == ["microbatch-16", "microbatch-8", "ddp", "tp"]


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_are_sentences_in_which_names_keep_their_case(cause) -> None:
    named, unnamed = (Finding("a", "failed", "b", cause, name) for name in ("net.0.BatchNorm", ""))
    assert re.fullmatch(r"[A-Z].*[^.]\.", named.explanation)
    assert not named.explanation.startswith("net.0")
    assert unnamed.explanation == named.explanation.replace("net.0.BatchNorm", CAUSES[cause].unnamed)
    assert "{" not in named.explanation
    assert named.remedy == "" or re.fullmatch(r"[A-Z].*[^.]\.", named.remedy)
