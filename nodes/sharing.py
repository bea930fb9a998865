"""Loaders that ask for the same share one patcher, and so one engine. Holds none alive."""

from __future__ import annotations

import weakref
from pathlib import Path

from ..engine import Engine
from .patcher import HiggsPatcher, make_patcher

_patchers: weakref.WeakValueDictionary[tuple, HiggsPatcher] = weakref.WeakValueDictionary()


def share_patcher(engine: Engine, fingerprint: list[list], label: str = "", warning: str = "") -> HiggsPatcher:
    """The patcher of an equal engine over the same files, if one is alive; else one for `engine`, not yet open.

    label, warning: for the info output of the nodes that use it.
    """
    files = tuple(map(tuple, fingerprint))
    config = engine.config
    precision = engine.dtype, config.weights
    adapters = tuple((str(Path(adapter.path).resolve()), adapter.strength) for adapter in config.adapters)
    key = (engine.checkpoint.folder.resolve(), files, adapters, engine.device, precision, engine.context, config.runner)
    patcher = _patchers.get(key)
    if patcher is None:
        patcher = _patchers[key] = make_patcher(engine)
    patcher.model.label, patcher.model.warnings = label, (warning,) if warning else ()
    patcher.model.files = fingerprint
    patcher.model.stamp = repr((files, precision, *adapters))
    return patcher
