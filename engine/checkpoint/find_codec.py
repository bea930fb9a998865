"""Search for a talker's codec: inside its file, beside it, or in Hugging Face's cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import HiggsError
from ..files.json_file import read_json
from .catalog import CODEC_V2, Repo
from .codec_layout import CodecWeights, looks_like_codec
from .discover import CODEC_SUBFOLDER, cached_snapshots
from .places import is_name
from .talker_layout import V3_CODEC, unwrapped
from .tensor_file import TensorFile, open_folder, open_tensors

FEW = 3  # problems listed in a message


@dataclass(frozen=True)
class FoundCodec:
    """A codec with its folder and layout."""

    weights: CodecWeights
    folder: Path
    layout: str  # "bundled", "transformers" or "older"
    notes: tuple[str, ...] = ()  # why codecs in preferred places were skipped


def first_problems(problems: list[str]) -> str:
    """Return the first problems and the number of the others."""
    more = f" And {len(problems) - FEW} more." if len(problems) > FEW else ""
    return " ".join(problems[:FEW]) + more


def find_codec(folder: Path, talker: TensorFile, codec_folder: Path | None) -> FoundCodec:
    """Find the codec for the talker in `folder`: the first that fits.

    If none fits, returns a codec in `folder` or `codec_folder` with its problems. If there is none, raises HiggsError
    with the places searched and the reasons for skipping the codecs found there.
    """
    bundled = talker.under(V3_CODEC)
    if bundled.shapes:
        return FoundCodec(CodecWeights(bundled), folder, "bundled")
    folder = folder if folder.is_dir() else folder.parent  # of a GGUF file
    places = list(dict.fromkeys(_codec_places(folder, codec_folder)))
    passed, damaged = {}, None
    for place in places:
        meant = codec_folder is not None or folder in (place, *place.parents)
        try:
            codec = open_codec(place)
        except HiggsError as error:
            passed[str(error)] = meant
            continue
        except OSError as error:  # no read permission, such as for lost+found
            passed[f"{place} cannot be read ({error.strerror or error})."] = meant
            continue
        if codec is None:
            continue
        problems = codec.weights.problems()
        if not problems:
            notes = (
                f"{reason} The codec in {place} is used instead." for reason, was_meant in passed.items() if was_meant
            )
            return replace(codec, notes=tuple(notes))
        passed[f"The codec in {place} is not usable. {first_problems(problems)}"] = meant
        damaged = damaged or (codec if meant else None)
    if damaged:
        return damaged
    looked = ", ".join(str(place) for place in places) or "no folder"
    reasons = "".join(f"{reason} " for reason in passed)
    raise HiggsError(
        f"{folder} contains no audio codec, and none was found elsewhere. Looked in: {looked}. {reasons}"
        f"Put {CODEC_V2.id} into {folder / CODEC_SUBFOLDER}, or give the folder that contains it."
    )


def open_codec(folder: Path) -> FoundCodec | None:
    """Open the codec in `folder`, recognised by tensor names, not by file names. Returns None if there is none.

    Raises HiggsError if a file cannot be read.
    """
    if not folder.is_dir():
        return None
    pickled = sorted(folder.glob("*.pth"))
    for tensors in (open_folder(folder), *(open_tensors([path]) for path in pickled)):
        if looks_like_codec(tensors.shapes):
            old = any(name.startswith("decoder_2.") for name in tensors.shapes)
            return FoundCodec(CodecWeights(tensors), folder, "older" if old else "transformers")
        if looks_like_codec((inside := unwrapped(tensors)[0].under(V3_CODEC)).shapes):
            return FoundCodec(CodecWeights(inside), folder, "bundled")
    return None


def _codec_places(folder: Path, codec_folder: Path | None) -> Iterable[Path]:
    """Yield folders that may contain the codec, the likeliest first."""
    if codec_folder:
        yield from (codec_folder, codec_folder / CODEC_SUBFOLDER)
        return
    yield folder / CODEC_SUBFOLDER
    yield folder
    yield from _folders_in(folder)
    name = _named_codec(folder)
    if name:
        yield from (folder / name, folder.parent / name, folder.parent / name.replace("\\", "/").rpartition("/")[2])
    siblings = (place for place in _folders_in(folder.parent) if place != folder)
    yield from (place for place in siblings if any(word in place.name.lower() for word in ("tokenizer", "codec")))
    for repo in (Repo(name or CODEC_V2.id, ""), CODEC_V2):
        yield from cached_snapshots(repo)


def _named_codec(folder: Path) -> str | None:
    """Return the codec named in processor_config.json: a repository or a path."""
    path = folder / "processor_config.json"
    entry = read_json(path).get("audio_tokenizer") if path.is_file() else None
    if isinstance(entry, dict):
        entry = entry.get("audio_tokenizer_name_or_path")
    return entry if is_name(entry) and entry else None


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    except OSError:  # no permission to list the folder
        return []
