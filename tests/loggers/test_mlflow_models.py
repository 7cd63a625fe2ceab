from __future__ import annotations

import sys
import types
from functools import partial

import pytest

from composer.loggers import MLFlowLogger
from tests.loggers.loop import Loop
from tests.loggers.trackers import marks

pytestmark = marks("mlflow")


@pytest.fixture
def make(tmp_path):
    uri = (tmp_path / "runs").as_uri()
    return partial(MLFlowLogger, tracking_uri=uri, log_system_metrics=False, logging_buffer_seconds=0)


def test_models_are_registered(make, tmp_path) -> None:
    logger = make(model_registry_prefix="team")
    loop = Loop([logger]).init().fit()
    model = tmp_path / "model"
    model.mkdir()
    (model / "MLmodel").write_text("flavors: {}\nmodel_uuid: 0\n")
    version = logger.register_model_with_run_id(model.as_uri(), "net", tags={"k": "v"})
    again = logger.register_model_with_run_id(model.as_uri(), "team.net")
    assert (version.name, int(version.version), version.run_id) == ("team.net", 1, logger.run_id)
    assert (again.name, int(again.version)) == ("team.net", 2)
    third = logger.register_model(model.as_uri(), "net")
    assert (third.name, int(third.version)) == ("team.net", 3)
    loop.close()


def test_models_are_saved_and_logged_by_flavor(make, monkeypatch) -> None:
    import mlflow

    seen = []

    def log_model(**arguments):
        seen.append((mlflow.active_run().info.run_id, mlflow.get_tracking_uri(), arguments))
        return "logged"

    flavor = types.ModuleType("mlflow.toy")
    flavor.save_model = lambda **arguments: seen.append(("saved", arguments))
    flavor.log_model = log_model
    monkeypatch.setitem(sys.modules, "mlflow.toy", flavor)
    logger = make()
    loop = Loop([logger]).init().fit()
    outer = mlflow.get_tracking_uri()
    logger.save_model("toy", path="p")
    assert logger.log_model("toy", name="m") == "logged"
    assert seen == [("saved", {"path": "p"}), (logger.run_id, logger.tracking_uri, {"name": "m"})]
    assert mlflow.get_tracking_uri() == outer
    assert mlflow.active_run() is None
    assert logger._mlflow_client.get_run(logger.run_id).info.status == "RUNNING"
    for wrong in ("nothing", "entities"):
        with pytest.raises(ValueError, match=f"such as 'transformers' or 'pytorch'; got '{wrong}'"):
            logger.save_model(wrong)
    loop.close()
    run = logger._mlflow_client.get_run(logger.run_id)
    assert run.info.status == "FINISHED"


def test_unity_catalog_requires_a_prefix(make) -> None:
    with pytest.raises(ValueError, match=r"must be 'catalog\.schema' for the registry 'databricks-uc'; got 'x'"):
        make(model_registry_uri="databricks-uc", model_registry_prefix="x")
    make(model_registry_uri="databricks-uc", model_registry_prefix="a.b")


def test_models_need_a_run(make) -> None:
    with pytest.raises(RuntimeError, match="has no run on this rank"):
        make().register_model_with_run_id("x", "y")
