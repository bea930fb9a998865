"""Number widgets of the engine's settings, whose default, range and step are those of the field; an upload button."""

from __future__ import annotations

from collections.abc import Collection

from comfy_api.latest import io

from ...engine import range_of


def upload_button(suffixes: Collection[str], prefix: str = "") -> dict:
    """The `extra_dict` of a widget whose node gets a button that uploads such files (web/js/upload.js).

    prefix: what stands before a name in ComfyUI's input folder, as the widget calls it.
    """
    return {"higgs_tts_upload": {"accept": ",".join(suffixes), "prefix": prefix}}


def number(settings: type, name: str, fresh: float | None = None, **options: str | bool) -> io.Input:
    """The widget of a number in SamplingParams or EngineConfig, an optional input of that name.

    fresh: what a new node starts with, where it is not the field's default, which a saved workflow without it means
    (`KEPT` in web/js/saved_values.js).
    """
    default, (low, high, step) = getattr(settings, name), range_of(settings, name)
    default = type(default)(default if fresh is None else fresh)
    kind = io.Int if isinstance(default, int) else io.Float
    return kind.Input(name, default=default, min=low, max=high, step=step, optional=True, **options)
