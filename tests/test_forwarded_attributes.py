from __future__ import annotations

import pytest

from composer.callbacks import MemorySnapshot, OOMObserver
from composer.loggers import FileLogger
from composer.profiler import JSONTraceHandler, TorchProfiler


@pytest.mark.parametrize("kind", [MemorySnapshot, OOMObserver, JSONTraceHandler, TorchProfiler])
def test_names_of_files_are_read_and_edited_under_their_arguments(kind) -> None:
    made = kind(folder="here", filename="x{rank}", remote_file_name="there/x{rank}", overwrite=True)
    assert (made.folder, made.filename, made.remote_file_name, made.overwrite) == (
        "here",
        "x{rank}",
        "there/x{rank}",
        True,
    )
    made.folder = "elsewhere"
    assert made.files.folder == "elsewhere"
    assert kind().folder == "{run_name}/traces" or kind().folder == "{run_name}/torch_traces"


def test_number_of_traces() -> None:
    made = JSONTraceHandler(num_traces_to_keep=3)
    made.num_traces_to_keep = 2
    assert made.files.num_to_keep == made.num_traces_to_keep == 2


def test_templates_of_a_log_file() -> None:
    made = FileLogger("{run_name}/a.txt", "b/{rank}.txt", overwrite=True)
    assert (made.filename_format, made.remote_file_name_format, made.overwrite) == (
        "{run_name}/a.txt",
        "b/{rank}.txt",
        True,
    )
