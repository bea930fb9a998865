"""Sound files in ComfyUI's output folder, with the workflow inside, as ComfyUI's own savers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from comfy.cli_args import args

from ...engine import encode_sound, write_file
from . import folders
from .audio import to_clip

_HOLD_WORKFLOWS = ("flac", "mp3", "ogg")  # ComfyUI's page reads them back from these


def save_sound(audio: dict, prefix: str, kind: str, tags: Mapping[str, str], hidden: object) -> Path:
    """Write an AUDIO of one clip to the next free name of a pattern. Returns the file.

    prefix: as in ComfyUI's Save Audio, such as audio/%year%/speech. tags: besides the title, by FFmpeg's names.
    hidden: the node's; it has prompt and workflow. Raises HiggsError as `next_output`, or if the file cannot be
    written.
    """
    path = folders.next_output(prefix, kind)
    tags = {"title": path.stem.rstrip("_"), **tags, **workflow_tags(kind, hidden)}
    write_file(path, encode_sound(*to_clip(audio), kind, tags))
    return path


def workflow_tags(kind: str, hidden: object) -> dict[str, str]:
    """Return what ComfyUI's savers keep in a file, unless the user has turned it off or the page does not read it."""
    if args.disable_metadata or kind not in _HOLD_WORKFLOWS:
        return {}
    prompt, more = getattr(hidden, "prompt", None), getattr(hidden, "extra_pnginfo", None)
    kept = ({} if prompt is None else {"prompt": prompt}) | dict(more or {})
    return {name: json.dumps(value) for name, value in kept.items()}
