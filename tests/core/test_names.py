from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Timestamp
from composer.core._names import (
    PROCESS_KEYS,
    TIME_KEYS,
    check_template,
    differs_by_process,
    format_name,
    placeholders,
)

NOW = Timestamp(iteration=1, epoch=2, batch=30, sample=400, token=5000, batch_in_epoch=6, total_wct=1.5)


def test_every_key_has_a_value() -> None:
    names = (*PROCESS_KEYS, *TIME_KEYS)
    template = "|".join(f"{{{name}}}" for name in names)
    values = dict(zip(names, format_name(template, "run", NOW).split("|"), strict=True))
    assert values["run_name"] == "run"
    assert values["rank"] == values["local_rank"] == values["node_rank"] == "0"
    assert values["world_size"] == values["local_world_size"] == "1"
    assert [values[name] for name in ("iteration", "epoch", "batch", "sample", "token")] == [
        "1",
        "2",
        "30",
        "400",
        "5000",
    ]
    assert values["batch_in_epoch"] == "6"
    assert values["total_wct"] == "1.5"
    assert values["batch_wct"] == "0.0"
    assert set(TIME_KEYS) == set(NOW.state_dict())


def test_the_environment_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "NODE_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    template = "{rank}-{local_rank}-{world_size}-{local_world_size}-{node_rank}"
    assert format_name(template, "run") == "5-1-8-4-1"


def test_specifications_braces_and_further_values() -> None:
    assert format_name("{batch:05d}-{total_wct:.2f}-{{x}}-{tag}", "run", NOW, tag="t") == "00030-1.50-{x}-t"
    assert format_name("{batch:{width}d}", "run", NOW, width=4) == "  30"


def test_a_further_value_goes_before_one_of_the_timestamp() -> None:
    assert format_name("{batch}", "run", NOW, batch=7) == "7"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{epoh}", r"'\{epoh\}' has the unknown placeholder \{epoh\}\. Did you mean 'epoch'\?"),
        ("{}", r"has the unknown placeholder \{\}\. Known are batch, "),
        ("{run_name.title}", r"unknown placeholder \{run_name\.title\}\. Did you mean 'run_name'\?"),
        ("{batch:{widht}d}", r"unknown placeholder \{widht\}"),
        ("{epoch", r"is no name with placeholders: expected '}' before end of string\. Write \{\{ for a brace\."),
    ],
)
def test_mistakes(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        format_name(template, "run", NOW)


def test_a_time_where_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"has the placeholder \{batch\}, but does not change in training"):
        format_name("{batch}", "run")
    assert check_template("filename", "{batch}", timed=True) == "{batch}"
    assert check_template("filename", "{mine}", more=["mine"]) == "{mine}"
    with pytest.raises(ValueError, match=r"^filename='\{rnk\}' has the unknown placeholder \{rnk\}\. Did you mean"):
        check_template("filename", "{rnk}")
    with pytest.raises(TypeError, match=r"filename must be a string, but got 3"):
        check_template("filename", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "differs"),
    [
        ("{run_name}/rank{rank}", True),
        ("{node_rank}-{local_rank}", True),
        ("{local_rank}", False),
        ("{run_name}", False),
        ("{{rank}}", False),
    ],
)
def test_differs_by_process(template: str, differs: bool) -> None:
    assert differs_by_process(template) is differs


@given(st.text())
def test_text_without_placeholders_stays(text: str) -> None:
    template = text.replace("{", "{{").replace("}", "}}")
    assert placeholders(template) == ()
    assert format_name(template, "run", NOW) == text
