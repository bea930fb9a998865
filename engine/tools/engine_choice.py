"""The engine that a command's arguments name."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint.embedded import EMBEDDED
from ..core.config import DEFAULT_GRAPHS, GRAPHS, Adapter, EngineConfig, ServerConfig
from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..engines.device_pool import Engines, engine_of
from ..engines.engine import Engine
from ..engines.remote.engine import RemoteEngine

if TYPE_CHECKING:
    from ..serve.cluster.cluster import Cluster

_NAMED = re.compile(r"([\w-]+)=(.+)")  # of --lora
_SMALL_VOICE = (
    f"No --model given, so the small embedded model speaks. It reads English only; see {EMBEDDED / 'README.md'}."
)


def settings_of(args: argparse.Namespace, model: str | Path) -> EngineConfig:
    partial = getattr(args, "partial_lora", False)
    return EngineConfig(
        model=str(model),
        codec=args.codec,
        device=args.device,
        dtype=args.dtype,
        runner=GRAPHS[getattr(args, "graphs", DEFAULT_GRAPHS)],
        kernels=getattr(args, "kernels", EngineConfig.kernels),
        adapters=tuple(replace(Adapter.parse(text), partial=partial) for text in getattr(args, "lora", None) or ()),
        whisper=getattr(args, "whisper", None),
        early=getattr(args, "early", False),
    )


def named_loras(args: argparse.Namespace) -> dict[str, Adapter]:
    """Return the adapters of --lora NAME=FILE by name, and leave the others in args. Raises HiggsError."""
    named: dict[str, Adapter] = {}
    plain = []
    for text in args.lora or ():
        adapter = Adapter.parse(text)
        match = _NAMED.fullmatch(adapter.path)
        if match is None or Path(adapter.path).exists():
            plain.append(text)
        elif match[1] in named:
            raise HiggsError(f"--lora has two adapters named {match[1]}. Give them different names.")
        else:
            named[match[1]] = replace(adapter, path=match[2], partial=args.partial_lora)
    if named and (args.ray is not None or args.ray_actors):
        raise HiggsError("LoRAs with a name cannot be used with --ray. Omit --ray, or start a server for each LoRA.")
    args.lora = plain
    return named


def config_of(args: argparse.Namespace) -> EngineConfig:
    """Return the configuration with --model, or with the embedded checkpoint."""
    if args.model is None:
        print(_SMALL_VOICE, file=sys.stderr)
    return settings_of(args, args.model or EMBEDDED)


def engine_on(args: argparse.Namespace, config: EngineConfig) -> Engine | Engines | Cluster:
    """Return this machine's devices, or the workers of a Ray cluster."""
    if args.ray is None and not args.ray_actors:
        return engine_of(config)
    import_optional("ray", "remote")  # one-line errors if they are missing
    import_optional("aiohttp.web", "Application")
    from ..serve.cluster.cluster import Cluster

    return Cluster(config, args.ray or "", args.ray_actors)


def engine_or_servers(args: argparse.Namespace) -> Engine | Engines | RemoteEngine:
    """Return this machine's devices, or the servers of --server. --voice may then be a server's voice."""
    if not args.server:
        return engine_of(config_of(args))
    named = args.voice if args.voice and not Path(args.voice).is_file() else ""
    return RemoteEngine(ServerConfig("\n".join(args.server), args.model or "", named))
