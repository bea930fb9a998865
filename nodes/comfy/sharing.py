"""Weak cache of patchers: loaders with equal settings share one patcher, and so one engine."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

from ...engine import Engine
from .patcher import HiggsPatcher, make_patcher

_patchers: weakref.WeakValueDictionary[tuple, HiggsPatcher] = weakref.WeakValueDictionary()


def share_patchers(
    engines: Sequence[Engine], fingerprint: list[list], label: str = "", warning: str = ""
) -> HiggsPatcher:
    """Return the live patcher of an equal engine over the same files, else a new one, not yet open.

    Several engines speak together: the first one's patcher is returned, and the rest are its `others`. label, warning:
    for the info output of the nodes that use it.
    """
    first, *others = (_share(engine, fingerprint, label, warning, len(engines)) for engine in engines)
    first.others = tuple(others)
    return first


def _share(engine: Engine, fingerprint: list[list], label: str, warning: str, together: int) -> HiggsPatcher:
    files = tuple(map(tuple, fingerprint))
    config = engine.config
    precision = engine.dtype, config.weights
    adapters = tuple((str(Path(adapter.path).resolve()), adapter.strength) for adapter in config.adapters)
    settings = engine.device, precision, engine.planner.context, config.runner, config.memory, config.whisper
    key = (engine.checkpoint.folder.resolve(), files, adapters, *settings, together)
    patcher = _patchers.get(key)
    if patcher is None:
        patcher = _patchers[key] = make_patcher(engine)
    patcher.model.label, patcher.model.warnings = label, (warning,) if warning else ()
    patcher.model.files = fingerprint
    return patcher
