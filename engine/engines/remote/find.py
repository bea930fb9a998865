"""Discovery of servers: reachability, kind, model and limitations. Sends no text."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ...core.config import ServerConfig
from ...core.errors import HiggsError
from ...prompt.card import ModelCard
from ...prompt.tags import TAGS
from .address import Address
from .connections import Connections
from .errors import Lost, error_of
from .server import SPEECH, Kind, Server
from .wire import Wire, wire_of

LOOK = 0.1  # seconds between calls of on_wait
_SECONDS = 15.0  # timeout per request
_OWNERS = {"higgs-tts": Kind.OURS, "sglang-omni": Kind.SGLANG, "vllm": Kind.VLLM}  # by `owned_by` in /v1/models
_SGLANG_S_OWN = f"{SPEECH}/{{request_id}}"  # a path that vLLM-Omni lacks
_HOSTED_MODEL = "higgs-tts-3"


@dataclass(frozen=True)
class FoundServers:
    """Usable servers in the given order, and a warning per problem."""

    servers: tuple[Server, ...]
    warnings: tuple[str, ...]

    @property
    def wire(self) -> Wire | None:
        """Description of the model if all servers are ours and have the same one; they then return codes. Else None."""
        wires = [server.wire for server in self.servers]
        if None in wires or len({wire.fingerprint for wire in wires if wire}) != 1:
            return None
        return min(filter(None, wires), key=attrgetter("context"))


def find_servers(addresses: Iterable[Address], config: ServerConfig, on_wait: Callable[[], object]) -> FoundServers:
    """Query all addresses in parallel. on_wait() is called meanwhile and may raise to cancel.

    Raises HiggsError if no server can speak.
    """
    wanted = list(addresses)
    answers: queue.Queue[tuple[Address, Server | BaseException]] = queue.Queue()
    connections = Connections()

    def look(address: Address):
        try:
            answers.put((address, _look(address, config, connections)))
        except HiggsError as error:
            answers.put((address, error))
        except BaseException as error:
            answers.put((address, error))
            raise

    for address in wanted:
        threading.Thread(target=look, args=(address,), name=f"Higgs TTS {address.label}", daemon=True).start()
    results: dict[Address, Server | BaseException] = {}
    try:
        while len(results) < len(wanted):
            on_wait()
            try:
                address, answer = answers.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(answer, BaseException) and not isinstance(answer, HiggsError):
                raise answer
            results[address] = answer
    finally:
        connections.close()
    return _judged({address: results[address] for address in wanted})


def _judged(results: Mapping[Address, Server | BaseException]) -> FoundServers:
    servers = [result for result in results.values() if isinstance(result, Server)]
    failed = [f"{address.label} {result}" for address, result in results.items() if not isinstance(result, Server)]
    if not servers:
        raise HiggsError(
            " ".join(["None of the servers can be used." if len(failed) > 1 else "The server cannot be used:", *failed])
        )
    warnings = [f"{sentence} It is not used." for sentence in failed]
    warnings += [f"{server.label} {server.lacks}" for server in servers if server.lacks]
    models = list(dict.fromkeys(server.model for server in servers if server.model))
    if len(models) > 1:
        warnings.append(f"The servers have different models ({', '.join(models)}), so chunks may sound different.")
    usable = FoundServers(tuple(servers), ())
    ours = [server for server in servers if server.kind is Kind.OURS]
    if old := [server.label for server in ours if server.wire is None]:
        warnings.append(
            f"{' and '.join(old)} {'is' if len(old) == 1 else 'are'} of another version of ComfyUI-Higgs-TTS, so the "
            "words are not checked. Install the same version there."
        )
    elif len(ours) == len(servers) and usable.wire is None and len(models) < 2:
        warnings.append("The servers' models differ in weights or precision, so chunks may sound different.")
    return replace(usable, warnings=tuple(warnings))


def _look(address: Address, config: ServerConfig, connections: Connections) -> Server:
    if address.is_hosted:
        if not address.key:
            raise Lost(f"needs a key. Put it into the environment variable {address.variable}, then restart.")
        return Server(address, Kind.HOSTED, config.model or _HOSTED_MODEL)
    health = connections.ask(address, "GET", "/health", seconds=_SECONDS)
    if health.status == 503:
        raise Lost("is running but not ready (HTTP 503). Wait until it has started, or check its log.")
    models = _models(address, connections)
    kind = _kind(address, models, connections)
    known = [str(model.get("id")) for model in models if model.get("id")]
    if config.model and known and config.model not in known:
        raise Lost(f"has no model {config.model!r}. Choose one of: {', '.join(known[:8])}.")
    if config.voice:
        _require_voice(address, config.voice, connections)
    server = Server(address, kind, config.model or (known[0] if known else ""))
    if kind is not Kind.OURS:
        return server
    about = next((model for model in models if model.get("id") == server.model), models[0]).get("higgs_tts")
    wire = wire_of(about.get("wire")) if isinstance(about, Mapping) else None
    return replace(server, card=_card(models[0]), wire=wire)


def _models(address: Address, connections: Connections) -> list[Mapping[str, Any]]:
    """Return the models that /v1/models lists. Empty if the server has no such path."""
    answer = connections.ask(address, "GET", "/v1/models", seconds=_SECONDS)
    if answer.status in (404, 405):
        return []
    if answer.status != 200:
        raise error_of(answer, address.variable)
    body = answer.json()
    listed = body.get("data") if isinstance(body, Mapping) else None
    if not isinstance(listed, list):
        raise Lost("returned no list of models. Check that this is the address of a speech server.")
    return [model for model in listed if isinstance(model, Mapping)]


def _kind(address: Address, models: list[Mapping[str, Any]], connections: Connections) -> Kind:
    owners = {str(model.get("owned_by")) for model in models}
    for owner, kind in _OWNERS.items():
        if owner in owners:
            return kind
    answer = connections.ask(address, "GET", "/openapi.json", seconds=_SECONDS)
    body = answer.json() if answer.status == 200 else None
    paths = body.get("paths") if isinstance(body, Mapping) else None
    if isinstance(paths, Mapping):
        if _SGLANG_S_OWN in paths:
            return Kind.SGLANG
        if SPEECH not in paths:
            raise Lost(f"has no {SPEECH}. Enter the address of a speech server.")
    return Kind.OTHER


def _require_voice(address: Address, voice: str, connections: Connections):
    """Raise Lost if the server lists its voices and this one is not among them."""
    answer = connections.ask(address, "GET", "/v1/audio/voices", seconds=_SECONDS)
    body = answer.json() if answer.status == 200 else None
    listed = next((body[key] for key in ("voices", "data") if key in body), None) if isinstance(body, Mapping) else body
    if not isinstance(listed, list):
        return
    entries = (one for one in listed if isinstance(one, (str, Mapping)))
    names = [one if isinstance(one, str) else one.get("name") or one.get("id") for one in entries]
    if names and voice.casefold() not in {str(name).casefold() for name in names}:
        raise Lost(f"has no voice {voice!r}. Choose one of: {', '.join(map(str, names[:16]))}.")


def _card(model: Mapping[str, Any]) -> ModelCard:
    about = model.get("higgs_tts")
    if not isinstance(about, Mapping):
        return ModelCard()
    languages, tags = about.get("languages"), about.get("tags")
    return ModelCard(
        tuple(map(str, languages)) if isinstance(languages, list) and languages else None,
        tuple(tag for tag in TAGS if tag in tags) if isinstance(tags, list) else None,
        about.get("one_voice") is True,
        spell_out=str(about.get("spell_out") or ""),
    )
