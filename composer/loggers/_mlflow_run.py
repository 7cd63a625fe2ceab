"""Find the MLflow experiment and run to log to, and convert names and parameters to what MLflow accepts."""

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
_MAX_NAME_LENGTH = 250
_MAX_VALUE_LENGTH = 6000


def find_experiment(client: Any, name: str | None, tracking_uri: str) -> str:
    """Return the id of an experiment, which is created if it does not exist.

    Args:
        client: An ``MlflowClient``.
        name: Its name; defaults to the environment variables ``MLFLOW_EXPERIMENT_ID`` or ``MLFLOW_EXPERIMENT_NAME``.
        tracking_uri: Tracking URI of the client. Databricks requires paths; other names are placed in the user's
            folder.
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
            # Another process may have created it in the meantime; any other error is raised below.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return experiment.experiment_id


def find_run(client: Any, experiment_id: str, run_name: str) -> str | None:
    """Return the id of the newest run whose tag ``run_name`` is a name, or None.

    Args:
        client: An ``MlflowClient``.
        experiment_id: The experiment to search.
        run_name: The name.
    """
    quote = "'" if '"' in run_name else '"'
    query = f"tags.run_name = {quote}{run_name}{quote}"
    if quote in run_name:  # the query language cannot express a name with both quotes
        return None
    found = client.search_runs([experiment_id], query, max_results=1, order_by=["attributes.start_time DESC"])
    return found[0].info.run_id if found else None


def clean_name(name: str) -> str:
    """Return a name with characters that MLflow does not allow replaced by underscores.

    Args:
        name: Name of a metric or a parameter.

    >>> clean_name("metrics/eval/Accuracy@5 [top]")
    'metrics/eval/Accuracy_5 _top_'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)[:_MAX_NAME_LENGTH]


def clean_parameters(hyperparameters: Mapping[str, Any], ignore: Iterable[str]) -> dict[str, str]:
    """Return hyperparameters as flat strings, truncated to the length that MLflow allows.

    Args:
        hyperparameters: Values by name, which may be nested.
        ignore: Patterns of names to leave out, matched with top-level names and with flat ones.

    >>> clean_parameters({"model": {"depth": 2, "layers": [1, 2]}, "seed": 1}, ignore=["se*"])
    {'model/depth': '2', 'model/layers': '[1, 2]'}
    """
    patterns = list(ignore)
    kept = {name: value for name, value in to_json(hyperparameters).items() if not matches(name, patterns)}
    flat = convert_nested_dict_to_flat_dict(kept)
    return {
        clean_name(name): str(value)[:_MAX_VALUE_LENGTH] for name, value in flat.items() if not matches(name, patterns)
    }


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches any of several glob patterns.

    Args:
        name: The name.
        patterns: The patterns.

    >>> matches("time/batch", ["time/*", "wall_clock"])
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def run_url(experiment_id: str | None, run_id: str | None) -> str:
    """Return the URL of a run, relative to the server or on the server in the variable ``DATABRICKS_HOST``.

    Args:
        experiment_id: Id of the experiment.
        run_id: Id of the run.

    >>> run_url("1", "ab").removeprefix(os.environ.get("DATABRICKS_HOST", "")).strip("/")
    'ml/experiments/1/runs/ab'
    """
    return posixpath.join(os.environ.get("DATABRICKS_HOST", ""), f"ml/experiments/{experiment_id}/runs/{run_id}")
