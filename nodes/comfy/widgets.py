"""Number widgets with the default, range and step of an engine setting, and an upload button."""

from __future__ import annotations

from collections.abc import Collection

from comfy_api.latest import io

from ...engine import range_of


def upload_button(suffixes: Collection[str], prefix: str = "") -> dict:
    """Return the `extra_dict` of a widget, adding a button that uploads files with these suffixes (web/js/upload.js).

    prefix: what the widget puts before a name in ComfyUI's input folder.
    """
    return {"higgs_tts_upload": {"accept": ",".join(suffixes), "prefix": prefix}}


def number(settings: type, name: str, fresh: float | None = None, **options: str | bool) -> io.Input:
    """Return an optional number input for a field of SamplingParams or EngineConfig.

    fresh: value in a new node. A saved workflow without the input means the field's default (`KEPT` in
    web/js/saved_values.js).
    """
    default, (low, high, step) = getattr(settings, name), range_of(settings, name)
    default = type(default)(default if fresh is None else fresh)
    kind = io.Int if isinstance(default, int) else io.Float
    return kind.Input(name, default=default, min=low, max=high, step=step, optional=True, **options)
