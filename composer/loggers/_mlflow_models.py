"""Save, log and register models with MLflow."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

from composer._lazy import import_extra

__all__ = ["ModelRegistry"]


class ModelRegistry:
    """Saves, logs and registers models for an MLflow run.

    Args:
        tracking_uri: Tracking server of the run.
        registry_uri: Where to register models; by default the tracking server.
        prefix: Prefix of the names of registered models, joined by a dot; ``catalog.schema`` for Unity Catalog.

    Raises:
        ValueError: The registry is Unity Catalog, and the prefix is not ``catalog.schema``.
    """

    def __init__(self, tracking_uri: str, registry_uri: str | None, prefix: str) -> None:
        if registry_uri is not None and registry_uri.startswith("databricks-uc"):
            parts = prefix.split(".")
            if len(parts) != 2 or not all(parts):
                raise ValueError(
                    f"model_registry_prefix must be 'catalog.schema' for the registry {registry_uri!r}; got {prefix!r}."
                )
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self.prefix = prefix

    def full_name(self, name: str) -> str:
        """Return the name of a registered model with its prefix.

        Args:
            name: The name, with or without the prefix.
        """
        return name if not self.prefix or name.startswith(f"{self.prefix}.") else f"{self.prefix}.{name}"

    def register(self, model_uri: str, name: str, wait: int, tags: dict[str, Any] | None) -> Any:
        """Register a model that was logged or saved, and return its version.

        Args:
            model_uri: URI of the model.
            name: Name of the registered model.
            wait: Seconds to wait until it is ready.
            tags: Tags of the version.
        """
        import mlflow

        with self._uris():
            return mlflow.register_model(model_uri, self.full_name(name), await_registration_for=wait, tags=tags)

    def register_for_run(
        self, client: Any, run_id: str, model_uri: str, name: str, wait: int, tags: dict[str, Any] | None
    ) -> Any:
        """Register the files of a model as belonging to a run, and return the version.

        Args:
            client: An ``MlflowClient``.
            run_id: The run.
            model_uri: URI of the model.
            name: Name of the registered model, which is created if needed.
            wait: Seconds to wait until it is ready.
            tags: Tags of the version.
        """
        from mlflow.exceptions import MlflowException

        full_name = self.full_name(name)
        try:
            client.create_registered_model(full_name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return client.create_model_version(
            name=full_name, source=model_uri, run_id=run_id, await_creation_for=wait, tags=tags
        )

    def save(self, flavor: str, arguments: dict[str, Any]) -> None:
        """Save a model to a local path.

        Args:
            flavor: Name of a module of mlflow that saves models.
            arguments: Arguments of its ``save_model``.
        """
        module = self._flavor(flavor, "save_model")
        with self._uris():
            module.save_model(**arguments)

    def log(self, flavor: str, run_id: str, client: Any, arguments: dict[str, Any]) -> Any:
        """Log a model to a run.

        Args:
            flavor: Name of a module of mlflow that saves models.
            run_id: The run.
            client: An ``MlflowClient``.
            arguments: Arguments of its ``log_model``.
        """
        import mlflow

        module = self._flavor(flavor, "log_model")
        with self._uris():
            try:
                with mlflow.start_run(run_id=run_id, nested=True):
                    return module.log_model(**arguments)
            finally:
                # Leaving the block ends the run, but it continues.
                client.update_run(run_id, status="RUNNING")

    @contextlib.contextmanager
    def _uris(self) -> Generator[None]:
        """Temporarily set mlflow's global tracking and registry URIs, for functions without arguments for them."""
        import mlflow

        outer = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
        mlflow.set_tracking_uri(self.tracking_uri)
        mlflow.set_registry_uri(self.registry_uri or self.tracking_uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(outer[0])
            mlflow.set_registry_uri(outer[1])

    @staticmethod
    def _flavor(flavor: str, function: str) -> Any:
        """Return the mlflow module that saves models of a flavor."""
        try:
            module = importlib.import_module(f"mlflow.{flavor}")
        except ModuleNotFoundError as error:
            if error.name != f"mlflow.{flavor}":
                missing = str(error.name).partition(".")[0]
                return import_extra(missing, "mlflow", f"Saving models of the flavor {flavor!r}", install="mlflow")
            module = None
        if not hasattr(module, function):
            raise ValueError(
                f"flavor must be the name of a module of mlflow that has {function}, such as 'transformers' or "
                f"'pytorch'; got {flavor!r}."
            )
        return module
