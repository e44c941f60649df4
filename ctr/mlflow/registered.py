"""`RegisteredModel`: the model that an alias or a version of MLflow's registry points to."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from ctr.errors import DataError
from ctr.features import replace_folder
from ctr.features.dataset import cache_folder
from ctr.mlflow.flavour import folder_within, reported, require_mlflow
from ctr.model import read_manifest

SCHEME = "models:/"
_URI = re.compile(r"models:/+(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


class RegisteredModel:
    """A model at `models:/name@alias` or `models:/name/version`, downloaded into this machine's cache."""

    def __init__(self, uri: str) -> None:
        """Raises DataError for any other URI, and if MLflow is not installed."""
        parts = _URI.fullmatch(uri)
        if parts is None:
            raise DataError(f"{uri}: give {SCHEME}NAME@ALIAS, or {SCHEME}NAME/VERSION.")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 take minutes
        self.uri = uri
        self._mlflow = require_mlflow(uri)
        self._name, self._alias, self._version = parts["name"], parts["alias"], parts["version"]
        self._folders: dict[str, Path] = {}
        """By version."""
        self._tracking = self._mlflow.get_registry_uri()

    def folder(self) -> Path:
        """The folder of the current version. Raises DataError if MLflow does not have it."""
        version = self._version
        with reported(self._mlflow):
            if version is None:
                client = self._mlflow.MlflowClient()
                version = str(client.get_model_version_by_alias(self._name, self._alias).version)
        if version not in self._folders:
            self._folders[version] = self._fetched(version)
        return self._folders[version]

    def _fetched(self, version: str) -> Path:
        uri = f"{SCHEME}{self._name}/{version}"
        with reported(self._mlflow):
            created = self._mlflow.MlflowClient().get_model_version(self._name, version).creation_timestamp
            key = hashlib.sha256(repr((self._tracking, uri, created)).encode()).hexdigest()[:24]
            place = cache_folder() / "mlflow" / key
            if not place.exists():
                with replace_folder(place) as draft:
                    self._mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(draft))
        folder = folder_within(place, uri)
        read_manifest(folder)
        return folder
