"""Engine on a Ray cluster, which it joins or starts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import ray
from ray.exceptions import RayError, RayTaskError

from ...core.config import EngineConfig
from ...core.errors import HiggsError
from ...speech.decoder import Stage
from ...voice.clip import Wave
from ...voice.voice import Voice
from ..engine import Engine
from ..speech_api import SpeechAPI
from .ray_session import RayPoolSession
from .seats import Seats, own_error

_STORE_BYTES = 512 << 20  # object store of a Ray started here; holds only audio in transit
_DEVICES = ("auto", "cuda", "cpu")


class RayPool:
    """Decoder over the workers."""

    def __init__(self, seats: Seats):
        self._seats, self._numbers = seats, itertools.count()

    @contextlib.contextmanager
    def session(self, stage: Stage) -> Iterator[RayPoolSession]:
        session = RayPoolSession(self._seats, stage, next(self._numbers))
        try:
            yield session
        finally:
            session.close()


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
            self._pool = RayPool(self.seats)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _hire(self) -> Seats:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if self._config.device == "cuda" and not gpus:
            raise HiggsError("The Ray cluster has no GPU. Add a machine that has one, or choose --device cpu.")
        if gpus and self._config.device != "cpu":
            config = replace(self._config, device="cuda:0")  # a worker sees only its own GPU
            return Seats(config, self._workers or gpus, {"num_gpus": 1})
        machines = sum(node["Alive"] for node in ray.nodes())
        return Seats(replace(self._config, device="cpu"), self._workers or machines, {"num_cpus": 1})

    @property
    def devices(self) -> int:
        """Number of workers that decode together."""
        return len(self.seats)

    def workers(self) -> list[dict[str, object]]:
        return self.seats.states()

    @property
    def fingerprint(self) -> str:
        """Digest of weights and precision, as in `Engine`."""
        return self.seats.fingerprint

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """Encode a voice on a worker, like `Engine.encode_voice`."""
        for seat in self.seats.ready:
            try:
                return ray.get(seat.actor.encode_voice.remote(wav, sample_rate, transcript, name))
            except RayTaskError as error:
                raise own_error(error) from None
            except RayError:  # died; the pool notices when it speaks
                continue
        raise self.seats.none_left()

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[RayPool]:
        yield self._pool


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
