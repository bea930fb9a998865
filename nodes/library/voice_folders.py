"""Voices in models/voices and in the pack, and where to save one. Reads no codes and no audio."""

from __future__ import annotations

import functools
from pathlib import Path

from ...engine import (
    BUILT_IN_CLIPS,
    CLIP_SUFFIXES,
    FILM_SUFFIXES,
    HiggsError,
    VoiceHead,
    composed,
    file_stamp,
    portable_parts,
    read_plain_text,
    read_voice_head,
)
from ..comfy import folders
from .saved_names import as_name, parts_of, the_one

FOLDER = "voices"  # below models/, and our key in extra_model_paths.yaml
PRONUNCIATIONS = "pronunciations.txt"
SAVED = ".safetensors"  # a saved voice
BUILT_IN = "built-in"  # prefix of the pack's clips
UPLOADED = "input"  # prefix of clips in ComfyUI's input folder

folders.register(FOLDER)


def voices() -> dict[str, Path]:
    """Map names to files: saved voices and clips in the voice folders, then the pack's clips."""
    files: dict[str, Path] = {}
    for root in folders.registered(FOLDER):
        for path in sorted(folders.files_below(root)):
            if path.suffix.lower() in (SAVED, *CLIP_SUFFIXES, *FILM_SUFFIXES) and is_voice(path):
                files.setdefault(path.relative_to(root).as_posix(), path)
    built_in = {f"{BUILT_IN}/{path.name}": path for path in built_in_voices()}
    return {**dict(sorted(files.items(), key=lambda item: item[0].lower())), **built_in}


def choices() -> dict[str, Path]:
    """Return `voices` and the clips in ComfyUI's input folder, where uploads land. Scripts cannot name these clips."""
    uploaded = folders.files_in_input(CLIP_SUFFIXES)
    return {**voices(), **{f"{UPLOADED}/{name}": path for name, path in uploaded.items()}}


def is_voice(path: Path) -> bool:
    """True if the file's header is a voice's, which excludes LoRAs and damaged files. Clips always count."""
    return path.suffix.lower() != SAVED or _head(path, *file_stamp(path)) is not None


@functools.lru_cache(4096)
def _head(path: Path, *seen: int) -> VoiceHead | None:
    try:
        return read_voice_head(path)
    except HiggsError:
        return None


def built_in_voices() -> list[Path]:
    """Return the pack's own clips."""
    return sorted(BUILT_IN_CLIPS.glob("*.flac"))


def find_voice(name: str) -> Path:
    """Return the file of the voice that a workflow calls `name`, matching its last parts if folders differ.

    Raises HiggsError if none or several match: a wrong guess would speak with someone else's voice.
    """
    known, name = choices(), as_name(name, "voice")
    # A missing voice must not be replaced by one of the pack's, or by a clip of the same name.
    same_origin = [other for other in known if _origin(other) == _origin(name)]
    missing = (
        f"there is no voice {name[:80]!r:.90} in models/{FOLDER} (found: {', '.join(known)[:800]}). Put a clip there, "
        "upload one, or save a voice with Higgs Save Voice, then press R to refresh the list."
    )
    return known[the_one(same_origin, name, "voice", missing)]


def voice_called(name: str) -> Path | None:
    """Return the file of the voice that a script calls `name`, ignoring suffix and case. The user's come first."""
    wanted = composed(name.strip().replace("\\", "/")).lower()
    for listed, path in voices().items():
        whole = composed(listed).lower()
        plain = whole.removeprefix(f"{BUILT_IN}/")
        if wanted in (whole, plain, plain.removesuffix(path.suffix.lower())):
            return path
    return None


def _origin(name: str) -> str:
    """Return the origin that a name's prefix states. Empty for models/voices."""
    first = parts_of(name)[0]
    return first if first in (BUILT_IN, UPLOADED) else ""


def listed_pronunciations() -> str:
    """Return the text of the first pronunciations.txt in the voice folders, or "". Raises HiggsError."""
    for root in folders.registered(FOLDER):
        path = root / PRONUNCIATIONS
        if path.is_file():
            try:
                return read_plain_text(path)[0]
            except OSError as error:
                raise HiggsError(
                    f"{path} cannot be read ({error.strerror or error}). Save it as plain text."
                ) from error
    return ""


def voice_target(name: str) -> Path:
    """Return where to save a voice. Raises HiggsError if the name leaves the folder or is not portable."""
    plain = name.strip().replace("\\", "/").removesuffix(SAVED).strip("/")
    parts = portable_parts(plain)
    if not parts:
        raise HiggsError(f"{name[:80]!r:.90} is not a valid voice name. Use letters and digits, with / for subfolders.")
    return folders.registered(FOLDER)[0].joinpath(*parts[:-1], parts[-1] + SAVED)


def numbered(path: Path, number: int) -> Path:
    """Return `path` for 1, then "name 2", "name 3", ... beside it."""
    return path if number == 1 else path.with_name(f"{path.stem} {number}{path.suffix}")
