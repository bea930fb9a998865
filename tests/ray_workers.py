"""Workers of a Ray started for tests."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile

import pytest
from higgs_tts.engine import EngineConfig


@contextlib.contextmanager
def ray_workers(config: EngineConfig, count: int):
    """Yield an open cluster of `count` workers. Skips the test if ray is not installed."""
    pytest.importorskip("ray", reason="ray is not installed")
    from higgs_tts.engine.serve.cluster.cluster import Cluster

    with tempfile.TemporaryDirectory() as packages, pytest.MonkeyPatch.context() as monkeypatch:
        # The workers import the pack by the name that it has here.
        (pathlib.Path(packages) / "higgs_tts").symlink_to(pathlib.Path(__file__).resolve().parents[1])
        paths = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [packages, paths])))
        with Cluster(config, workers=count) as cluster:
            yield cluster
