"""ComfyUI's folders of checkpoints and voices, and the names under which workflows keep them. Opens no tensors."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import folder_paths

from ..engine import DOWNLOADS, EMBEDDED, EMBEDDED_NAME, Found, HiggsError, find_checkpoints, find_in_hf_cache

HOME = "higgs_tts"  # our folder below models/, and our key in extra_model_paths.yaml
OTHER_HOMES = ("TTS", "tts", "higgsv3tts", "higgs_audio")  # where other packs keep the same checkpoints
VOICES = "voices"
AUTO = "auto"  # the best checkpoint that is here
SHIPPED_VOICES = Path(__file__).parent / "voices"
SHIPPED = "built-in"  # what their names begin with
DOWNLOAD = "download: "  # a choice that begins so is fetched when it runs
SAVED = ".safetensors"  # a saved voice
CLIPS = (".wav", ".flac", ".mp3", ".ogg")
REVISION = re.compile(r"@[0-9a-f]{7,40}$")
LONGEST_NAME = 200  # bytes; file systems take 255, with an ending and a while of writing
RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}
TRANSCRIPTS = (".reference.txt", ".txt")  # beside a clip, the first that is there


def register() -> None:
    """Make our folders known to ComfyUI. What extra_model_paths.yaml said of them stays first."""
    for name, extensions in ((HOME, {SAVED, ".pth"}), (VOICES, {SAVED, *CLIPS})):
        folder_paths.add_model_folder_path(name, os.path.join(folder_paths.models_dir, name))
        paths, known = folder_paths.folder_names_and_paths[name]
        # ComfyUI takes an empty set for "any file", and sets one for every key it reads from the yaml.
        folder_paths.folder_names_and_paths[name] = (paths, set(known) | extensions)


def model_roots() -> list[Path]:
    """Folders that are searched for checkpoints: ours first; each once, also where TTS and tts are one folder."""
    places = list(folder_paths.get_folder_paths(HOME))
    for name in OTHER_HOMES:
        places += folder_paths.folder_names_and_paths.get(name, ([], ()))[0]
        places.append(os.path.join(folder_paths.models_dir, name))
    roots: list[Path] = []
    for place in map(Path, places):
        if place.is_dir() and not any(place.samefile(root) for root in roots):
            roots.append(place)
    return roots


def checkpoints() -> dict:
    """Name in the loader's list -> what was found, as the disk is now: ComfyUI's folders, Hugging Face's cache, ours.

    What works comes first, and has a name before an unfinished download that bears it too.
    """
    shipped = [replace(found, name=EMBEDDED_NAME) for found in find_checkpoints([EMBEDDED])]
    found = [*find_checkpoints(model_roots()), *find_in_hf_cache(), *shipped]
    named: dict = {}
    for checkpoint in sorted(found, key=lambda checkpoint: not checkpoint.complete):
        named.setdefault(checkpoint.name, checkpoint)
    return named


def choices() -> list[str]:
    """The loader's list: the best that is here, each that is here, then what can be fetched."""
    return [AUTO, *checkpoints(), *(DOWNLOAD + label for label in DOWNLOADS)]


def find(name: str) -> Found:
    """The checkpoint that a workflow calls `name`, which may have been in another folder when it was saved.

    "auto" is Higgs TTS 3 where there is one, else Higgs Audio v2, else the embedded checkpoint. Raises HiggsError where
    nothing has that name, or files are missing in it.
    """
    found = checkpoints()
    if name == AUTO:
        return min((one for one in found.values() if one.complete), key=_preference)
    alike = _alike(found, name)
    if not alike:
        raise HiggsError(
            f"there is no checkpoint {name!r} in ComfyUI's model folders (found: {', '.join(found)}). Choose "
            f"'{AUTO}', which takes the best one that is there, or '{EMBEDDED_NAME}', which always is. Or put its "
            f"folder into models/{HOME}, or choose a '{DOWNLOAD}' entry; press R to refresh the list."
        )
    match = found[alike[0]]
    if not match.complete:
        raise HiggsError(
            f"{match.path} is not complete. {match.note} Download it again, or choose another checkpoint from the list."
        )
    return match


def _preference(found: Found) -> tuple:
    """Order among checkpoints for "auto": v3 before v2 before the embedded one, published names first, then by name."""
    published = {name.lower() for download in DOWNLOADS.values() for name in download.names}
    is_published = _parts(found.name)[-1] in published
    return found.name == EMBEDDED_NAME, found.family != "v3", not is_published, found.name.lower()


def download_root() -> Path:
    return Path(folder_paths.get_folder_paths(HOME)[0])


def stamp(folder: Path) -> list[list]:
    """[name, bytes, time] of each file of a checkpoint: another value means that it must be loaded anew."""
    files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def voices() -> dict[str, Path]:
    """Name -> file of every saved voice and every clip in the voice folders, then of the clips in the pack."""
    files: dict[str, Path] = {}
    for root in map(Path, folder_paths.get_folder_paths(VOICES)):
        for path in sorted(root.rglob("*")):
            if path.suffix.lower() in (SAVED, *CLIPS) and path.is_file():
                files.setdefault(path.relative_to(root).as_posix(), path)
    shipped = {f"{SHIPPED}/{path.name}": path for path in sorted(SHIPPED_VOICES.glob("*.flac"))}
    return {**dict(sorted(files.items(), key=lambda item: item[0].lower())), **shipped}


def find_voice(name: str) -> Path:
    """The file of the voice a workflow calls `name`, found by its last parts when folders differ.

    Raises HiggsError if there is none, or several that it could be: it is somebody's voice.
    """
    known = voices()
    is_shipped = _parts(name)[0] == SHIPPED  # else a missing voice of the user's never becomes one of ours
    alike = _alike({n: p for n, p in known.items() if (_parts(n)[0] == SHIPPED) == is_shipped}, name)
    if not alike:
        raise HiggsError(
            f"there is no voice {name!r} in models/{VOICES} (found: {', '.join(known)}). Put a clip there or save a "
            "voice with Higgs Save Voice, then press R to refresh the list."
        )
    if len(alike) > 1:
        raise HiggsError(f"there is no voice {name!r}; it could be {' or '.join(alike)}. Choose one from the list.")
    return known[alike[0]]


def voice_target(name: str) -> Path:
    """Where a voice of this name is saved. Raises HiggsError for a name that leaves the folder or is not portable."""
    root = Path(folder_paths.get_folder_paths(VOICES)[0])
    plain = name.strip().replace("\\", "/").removesuffix(SAVED).strip("/")
    parts = plain.split("/")
    if not plain or not all(map(_can_be_a_name, parts)):
        raise HiggsError(f"{name!r} is not a valid voice name. Use letters and digits, with / for a folder.")
    return root.joinpath(*parts[:-1], parts[-1] + SAVED)


def numbered(path: Path, number: int) -> Path:
    """`path` for 1, then "name 2", "name 3", ... beside it."""
    return path if number == 1 else path.with_name(f"{path.name.removesuffix(SAVED)} {number}{SAVED}")


def transcript_of(clip: Path) -> tuple[str, str]:
    """(What is said in a clip, name of the file that says so); both empty when no text file lies beside it."""
    for suffix in TRANSCRIPTS:
        path = clip.with_suffix(suffix)
        if path.is_file():
            return _text(path.read_bytes()), path.name
    return "", ""


def _text(data: bytes) -> str:
    """What an editor saved: UTF-8, UTF-16 as Windows writes it, or else its old Western letters."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace").strip()
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace").strip()


def _can_be_a_name(part: str) -> bool:
    """Whether every system takes `part` as the name of a file or folder."""
    if part.strip(" .") != part or not 0 < len(part.encode()) <= LONGEST_NAME:
        return False
    if part.split(".")[0].upper() in RESERVED:
        return False
    return all(character.isprintable() and character not in '<>:"|?*' for character in part)


def _alike(entries: dict, name: str) -> list[str]:
    """The entry of that name alone, else all that have most of their last parts in common with it, one at least."""
    if name in entries:
        return [name]
    common = {other: _common_tail(other, name) for other in entries}
    most = max([1, *common.values()])
    return [other for other in entries if common[other] == most]


def _common_tail(one: str, other: str) -> int:
    """How many of their last parts two saved names share, whatever the system and the case."""
    pairs = zip(_parts(one)[::-1], _parts(other)[::-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parts(name: str) -> list[str]:
    """The parts of a saved name, without the revision of a cached repository."""
    return REVISION.sub("", name.replace("\\", "/").strip("/").lower()).split("/")


register()
