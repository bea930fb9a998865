"""Engine on a Ray cluster, which it joins or starts: Ray places servers, and they are called like others of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from ...core.config import EngineConfig, ServerConfig
from ...core.errors import HiggsError
from ...engines.engine import Engine
from ...engines.loaded_model import CPU_BATCH
from ...engines.remote.chunk_calls import encoded_by
from ...engines.remote.connections import Connections
from ...engines.remote.server_pool import ServerPool
from ...engines.speech_api import SpeechAPI
from ...voice.clip import Wave, check_clip
from ...voice.voice import Voice
from ..speaker import ROWS
from .seats import Seats
from .worker import Worker

_STORE_BYTES = 128 << 20  # object store of a Ray started here, which carries no sound
_DEVICES = ("auto", "cuda", "cpu")
_SILENCE = 60.0  # seconds without a sign of life, which a server sends every ten
_AHEAD = 2  # chunks that wait at a worker, so that its rows never do


class PlacedWorker(Worker):
    """A worker that listens at its machine's address in the cluster."""

    def __init__(self, config: EngineConfig, key: str):
        super().__init__(config, key, ray.util.get_node_ip_address())


class Cluster(SpeechAPI):
    """Speaks on the workers of a Ray cluster, for the length of a `with`.

    Ray places the workers, and others when they die. Every machine needs this pack and the model at the same paths.
    Codes match a single engine if all devices are the same model. If a worker dies, the others take over its unfinished
    chunks, and the result's warnings say so.

    Args:
        config: configuration of each worker, with a device of _DEVICES.
        address: address of the cluster. Empty uses the one on this machine, or else starts Ray here.
        workers: number of workers. 0 starts one per GPU, or one per machine without GPUs.

    Raises:
        HiggsError: if there is no cluster or no worker.
    """

    def __init__(self, config: EngineConfig, address: str = "", workers: int = 0):
        if address.startswith("ray://"):
            raise HiggsError(f"{address} is a Ray Client address. Run the command on a machine of the cluster instead.")
        if config.device not in _DEVICES:
            raise HiggsError(f"The device is {config.device}, but Ray picks the device for each worker. Omit --device.")
        self._config, self._address, self._workers = config, address, workers
        self.planner = Engine(replace(config, device="cpu", runner="auto")).planner

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            if not ray.is_initialized():
                _join(self._address, self._workers)
                stack.callback(ray.shutdown)
            self.seats = self._hire()
            stack.callback(self.seats.close)
            self.seats.gather()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _hire(self) -> Seats:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if self._config.device == "cuda" and not gpus:
            raise HiggsError("The Ray cluster has no GPU. Add a machine that has one, or choose --device cpu.")
        is_gpu = gpus > 0 and self._config.device != "cpu"
        config = replace(self._config, device="cuda:0" if is_gpu else "cpu")  # a worker sees only its own GPU
        self._calls = ServerConfig("", calls=(ROWS if is_gpu else CPU_BATCH) + _AHEAD, timeout=_SILENCE)
        key = secrets.token_urlsafe(32)  # of this run, known to its servers and to nobody else
        options: dict[str, Any] = {"num_gpus": 1} if is_gpu else {"num_cpus": 1}
        actor = ray.remote(PlacedWorker).options(scheduling_strategy="SPREAD", max_concurrency=2, **options)
        machines = sum(node["Alive"] for node in ray.nodes())
        return Seats(partial(actor.remote, config, key), self._workers or (gpus if is_gpu else machines), key)

    @property
    def devices(self) -> int:
        return len(self.seats.all)

    @property
    def kind(self) -> str:
        kinds = {seat.about.kind for seat in self.seats.all if seat.about}
        return kinds.pop() if len(kinds) == 1 else ""

    def workers(self) -> list[dict[str, object]]:
        return self.seats.states()

    @property
    def fingerprint(self) -> str:
        """Digest of weights and precision, as the workers have them."""
        return self.seats.fingerprint

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        check_clip(wav, sample_rate)
        clip = wav, sample_rate, (transcript or "").strip() or None, name
        return encoded_by(self.seats.servers, clip, Connections(), self._calls.timeout)

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[ServerPool]:
        yield ServerPool(self.seats, self._calls, None)


def _join(address: str, workers: int):
    """Join a cluster. Without an address, join this machine's, or else start a private one here."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _require_answer(address)
        ray.init(address, **quiet)
        return
    try:
        ray.init("auto", **quiet)
    except ConnectionError:
        cpus = max(workers, os.cpu_count() or 1)
        ray.init("local", num_cpus=cpus, object_store_memory=_STORE_BYTES, include_dashboard=False, **quiet)


def _require_answer(address: str):
    """Raise HiggsError if nothing listens at an address. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise HiggsError(
            f"There is no Ray cluster at {address} ({error}). Give the HOST:PORT that `ray start --head` prints."
        ) from error
