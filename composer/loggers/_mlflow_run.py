"""Find the experiment and the run of MLflow to log to, and write names and values as it wants them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from composer._lazy import import_extra
from composer.loggers._values import to_json
from composer.nested import convert_nested_dict_to_flat_dict

__all__ = ["clean_name", "clean_parameters", "find_experiment", "find_run", "matches", "run_url"]

_DEFAULT_EXPERIMENT = "my-mlflow-experiment"
_LONGEST_NAME = 250
_LONGEST_VALUE = 6000


def find_experiment(client: Any, name: str | None, tracking_uri: str) -> str:
    """Return the id of an experiment, which is made if there is none of its name.

    Args:
        client: An ``MlflowClient``.
        name: Its name; by default ``MLFLOW_EXPERIMENT_ID`` or ``MLFLOW_EXPERIMENT_NAME`` of the environment tells.
        tracking_uri: Where the client logs. Databricks wants paths; any other name is put into the user's folder.
    """
    from mlflow.exceptions import MlflowException

    if name is None and "MLFLOW_EXPERIMENT_ID" in os.environ:
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_EXPERIMENT
    if tracking_uri.startswith("databricks") and not name.startswith("/"):
        sdk = import_extra("databricks.sdk", "mlflow", "MLFlowLogger with Databricks")
        name = f"/Users/{sdk.WorkspaceClient().current_user.me().user_name}/{name}"
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name)
        except MlflowException:
            # Another process may have been faster; what is wrong otherwise is still wrong below.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return experiment.experiment_id


def find_run(client: Any, experiment_id: str, run_name: str) -> str | None:
    """Return the id of the newest run that has a name as its tag ``run_name``, or None.

    Args:
        client: An ``MlflowClient``.
        experiment_id: Where to look.
        run_name: The name.
    """
    quote = "'" if '"' in run_name else '"'
    query = f"tags.run_name = {quote}{run_name}{quote}"
    if quote in run_name:  # the language of queries has no way to write both
        return None
    found = client.search_runs([experiment_id], query, max_results=1, order_by=["attributes.start_time DESC"])
    return found[0].info.run_id if found else None


def clean_name(name: str) -> str:
    """Return a name with the characters that MLflow allows; any other becomes an underscore.

    Args:
        name: Name of a metric or a parameter.

    >>> clean_name("metrics/eval/Accuracy@5 [top]")
    'metrics/eval/Accuracy_5 _top_'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)[:_LONGEST_NAME]


def clean_parameters(hyperparameters: Mapping[str, Any], ignore: Iterable[str]) -> dict[str, str]:
    """Return hyperparameters as flat texts, cut where they are longer than MLflow allows.

    Args:
        hyperparameters: Values by name, nested or not.
        ignore: Patterns of names to leave out, which hold for outer names and for flat ones.

    >>> clean_parameters({"model": {"depth": 2, "layers": [1, 2]}, "seed": 1}, ignore=["se*"])
    {'model/depth': '2', 'model/layers': '[1, 2]'}
    """
    patterns = list(ignore)
    kept = {name: value for name, value in to_json(hyperparameters).items() if not matches(name, patterns)}
    flat = convert_nested_dict_to_flat_dict(kept)
    return {
        clean_name(name): str(value)[:_LONGEST_VALUE] for name, value in flat.items() if not matches(name, patterns)
    }


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a name matches any of some patterns as those for file names, where ``*`` stands for anything.

    Args:
        name: The name.
        patterns: The patterns.

    >>> matches("time/batch", ["time/*", "wall_clock"])
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def run_url(experiment_id: str | None, run_id: str | None) -> str:
    """Return the address of a run below that of the server; ``DATABRICKS_HOST`` of the environment tells the server.

    Args:
        experiment_id: Id of the experiment.
        run_id: Id of the run.

    >>> run_url("1", "ab").removeprefix(os.environ.get("DATABRICKS_HOST", "")).strip("/")
    'ml/experiments/1/runs/ab'
    """
    return posixpath.join(os.environ.get("DATABRICKS_HOST", ""), f"ml/experiments/{experiment_id}/runs/{run_id}")
