"""Search for a talker's codec: inside its file, beside it, or in Hugging Face's cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import HiggsError
from ..files.json_file import read_json
from .catalog import CODEC_V2, DOWNLOADS, Repo
from .codec_layout import CodecWeights, looks_like_codec
from .discover import CODEC_SUBFOLDER, CONFIG, cached_snapshots, find_checkpoints
from .embedded import EMBEDDED
from .hf_config import family_of
from .places import is_name
from .talker_layout import V3_CODEC, unwrapped
from .tensor_file import TensorFile, open_folder, open_tensors

FEW = 3  # problems listed in a message


@dataclass(frozen=True)
class FoundCodec:
    weights: CodecWeights
    folder: Path
    layout: str  # "bundled", "transformers" or "older"
    notes: tuple[str, ...] = ()  # why codecs in preferred places were skipped


def first_problems(problems: list[str]) -> str:
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
    bases = [] if codec_folder else _bases(folder)
    places = list(dict.fromkeys(_codec_places(folder, codec_folder, bases)))
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
        if not (problems := codec.weights.problems()):
            notes = (
                f"{reason} The codec in {place} is used instead." for reason, was_meant in passed.items() if was_meant
            )
            borrowed = [f"{folder} contains no codec; the codec in {place} is used."] if place in bases else []
            return replace(codec, notes=(*notes, *borrowed))
        passed[f"The codec in {place} is not usable. {first_problems(problems)}"] = meant
        damaged = damaged or (codec if meant else None)
    if damaged:
        return damaged
    looked = ", ".join(str(place) for place in places) or "no folder"
    reasons = "".join(f"{reason} " for reason in passed)
    raise HiggsError(
        f"{folder} contains no audio codec, and none was found elsewhere. Looked in: {looked}. {reasons}"
        f"{codec_remedy(folder)}, or give the folder that contains it."
    )


def codec_remedy(folder: Path) -> str:
    """Return which files to put where for the talker in `folder`, without a full stop."""
    files = " and ".join(name for name in CODEC_V2.patterns if "*" not in name)
    put = f"Put {files} of {CODEC_V2.id} into {folder / CODEC_SUBFOLDER}"
    base = next(
        (one.talker.id for one in DOWNLOADS.values() if one.codec is None and one.family == _family(folder)), ""
    )
    return f"{put}, or put {base}, whose file includes the codec, next to {folder}" if base else put


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


def _codec_places(folder: Path, codec_folder: Path | None, bases: list[Path]) -> Iterable[Path]:
    """Yield folders that may contain the codec, the likeliest first."""
    if codec_folder:
        yield from (codec_folder, codec_folder / CODEC_SUBFOLDER)
        return
    yield folder / CODEC_SUBFOLDER
    yield folder
    yield from _folders_in(folder)
    if name := _named_codec(folder):
        yield from (folder / name, folder.parent / name, folder.parent / name.replace("\\", "/").rpartition("/")[2])
    yield from bases
    siblings = (place for place in _folders_in(folder.parent) if place != folder)
    yield from (place for place in siblings if any(word in place.name.lower() for word in ("tokenizer", "codec")))
    for repo in (Repo(name or CODEC_V2.id, ""), CODEC_V2):
        yield from cached_snapshots(repo)


def _bases(folder: Path) -> list[Path]:
    """Return v3 checkpoints of the same size as the fine-tune in `folder`, whose trainer did not save the codec."""
    size = _size(folder)
    if _family(folder) != "v3" or not size:
        return []
    here = folder.absolute()
    near = [place for place in (here.parent, here.parent.parent) if place != place.parent]  # never a whole disk
    candidates = [match.path for place in near for match in find_checkpoints([place], 1) if match.family == "v3"]
    candidates += [place for one in DOWNLOADS.values() if one.family == "v3" for place in cached_snapshots(one.talker)]
    return [place for place in (*candidates, EMBEDDED) if place.is_dir() and place != here and _size(place) == size]


def _config(folder: Path) -> dict:
    try:
        return read_json(folder / CONFIG)
    except HiggsError:
        return {}


def _family(folder: Path) -> str | None:
    return family_of(_config(folder))


def _size(folder: Path) -> tuple:
    """Return the numbers by which models of one family differ, empty if config.json has none."""
    text = _config(folder).get("text_config")
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return tuple(text.get(name) for name in names) if isinstance(text, dict) else ()


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
