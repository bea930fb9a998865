"""Readers of untrusted files, texts and requests, with samples and ways to damage them."""

from __future__ import annotations

import functools
import io
import json
import pathlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...engine import (
    EMBEDDED,
    Adapter,
    BookSettings,
    Engine,
    EngineConfig,
    FileList,
    HiggsError,
    SamplingParams,
    Turn,
    Voice,
    clip_seconds,
    cue_names,
    narrate,
    planned_seconds,
    read_book,
    read_book_text,
    read_clip,
    read_cues,
    read_dialogue,
    read_lines,
    read_pronunciations,
    read_voice_head,
    script_names,
    text_check_before,
    with_seed,
)
from ...engine.book.chapters import groups, plan_chapters
from ...engine.book.spoken import SpokenSequences
from ...engine.checkpoint.adapter_files import AUDIO_MODULES
from ...engine.checkpoint.load import inspect, load_talker
from ...engine.checkpoint.tensor_file import INDEX
from ...engine.core.sequence import Sequence
from ...engine.prompt.card import CARD, read_card
from ...engine.prompt.chunking import split_script
from ...engine.prompt.script import read_pauses
from ...engine.tools.tiny import write_tiny
from ...engine.voice.clip import decode_clip
from ...engine.voice.reference import reference_of
from ..epub_files import epub
from ..gguf_files import Q8_0, write_gguf
from ..peft_files import write_adapter
from ..port_files import write_port
from . import mutations
from .asked import Asked, requests
from .asked import spoil as spoil_request
from .messaged import Messaged, conversations
from .messaged import spoil as spoil_messages
from .paged import Paged, nodes, pages
from .paged import spoil as spoil_page
from .samples import (
    CUES,
    LINES,
    LIST,
    MARKDOWN,
    MARKS,
    NAMES,
    PAUSES,
    SAID,
    SCRIPT,
    SHEET,
    SHEETS,
    SRT,
    TAGS,
    TEXT,
    VTT,
    WORDS,
)

torch.set_num_threads(1)

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=2, retries=0)


@dataclass
class Surface:
    """A reader. run(data, folder): reads the data; `folder` is the child's own. warm: what it needs first."""

    samples: list[bytes]
    spoil: Callable[[random.Random, bytes], bytes]
    run: Callable[[bytes, pathlib.Path], object]
    warm: Callable[[pathlib.Path], object] = field(default=lambda folder: None)
    limit: float = 6.0  # seconds of CPU time that count as a hang

    def input(self, rng: random.Random) -> bytes:
        """Return a damaged sample."""
        return self.spoil(rng, rng.choice(self.samples))


def prepared(folder: pathlib.Path) -> dict[str, Surface]:
    """Return every surface by name. `folder` is for their samples."""
    server, messaged = Asked(), Messaged()
    served = {"server": Surface(requests(), spoil_request, server.run, server.warm, limit=60.0)}  # it speaks, too
    served["messages"] = Surface(conversations(), spoil_messages, messaged.run, messaged.warm, limit=60.0)
    paged = Paged()
    served["page"] = Surface(pages(), spoil_page, paged.run, paged.warm)
    served["nodes"] = Surface(nodes(), spoil_page, paged.run, paged.warm, limit=12.0)
    read = {**_checkpoints(folder / "samples"), **_sounds(folder), **_books(folder), **_texts()}
    return {**read, **_kept(folder), **served}


def _kept(folder: pathlib.Path) -> dict[str, Surface]:
    """Return what a book keeps to be resumed: spoken sequences, and the list of its files."""
    asked, spoken = Sequence([1, 2, 3], ()), Sequence([1, 2, 3], ())
    spoken.fill(torch.arange(400).reshape(50, 8), True)
    SpokenSequences(folder / "kept", "a model").keep(asked, spoken)
    (kept,) = (folder / "kept").rglob("*.safetensors")
    place = kept.relative_to(folder / "kept")
    files = FileList(folder / "kept", "book.json", "a book")
    files.listed = {"01 One.flac": ("ab" * 32, 1000), "01 One.srt": ("ab" * 32, 10)}
    files.write()

    def filled(data: bytes, child: pathlib.Path):
        (child / place).parent.mkdir(exist_ok=True)
        (child / place).write_bytes(data)
        again, store = Sequence([1, 2, 3], ()), SpokenSequences(child, "a model")
        if store.fill(again):
            (codes,) = again.codes
            assert codes.shape[1] == 8 and 0 <= int(codes.min()) <= int(codes.max()) < 1024
        return store.damaged

    def listed(data: bytes, child: pathlib.Path):
        (child / "book.json").write_bytes(data)
        found = FileList(child, "book.json", "a book")
        _short((found.damage,))
        return [found.has(name, "ab" * 32) for name in ("01 One.flac", *found.listed)]

    bound = folder / "bound"
    text = "# One\n\nApple.\n\n# Two\n\nPear."

    def narrated(place: pathlib.Path):
        with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine:
            return narrate(
                engine,
                read_book_text(text, "A"),
                place,
                params=PARAMS,
                settings=BookSettings(kind="m4b", words=engine.words, srt_words=2),
            )

    narrated(bound)
    parts = sorted((bound / "spoken" / "chapters").iterdir())

    def bound_again(data: bytes, child: pathlib.Path):
        """Bind a book whose part was replaced. Its list tells the part's new size, or it would not be read."""
        name, _, data = data.partition(b"\n")
        place = child / "bound"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(bound, place)
        next(place.glob("*.m4b")).unlink()
        path = place / "spoken" / "chapters" / name.decode()
        path.write_bytes(data)
        kept = FileList(place, "book.json", "higgs-tts-book")
        (listed,) = [one for one in kept.listed if one.endswith(path.name)]
        kept.listed[listed] = kept.listed[listed][0], len(data)
        kept.write()
        report = narrated(place)
        _short(tuple(map(str, report.warnings)))
        assert report.seconds > 0.1
        return report.reused

    def spoil_part(rng: random.Random, data: bytes) -> bytes:
        name, _, data = data.partition(b"\n")
        is_sound = name.endswith(b".flac")
        damaged = (
            mutations.bytes_of(rng, data, rng.choice((48, 200, None))) if is_sound else mutations.json_of(rng, data)
        )
        return name + b"\n" + damaged

    return {
        "bound parts": Surface(
            [path.name.encode() + b"\n" + path.read_bytes() for path in parts], spoil_part, bound_again, limit=60.0
        ),
        "kept speech": Surface([kept.read_bytes()], mutations.safetensors_of, filled),
        "list": Surface([(folder / "kept" / "book.json").read_bytes()], mutations.json_of, listed),
    }


def _checkpoints(samples: pathlib.Path) -> dict[str, Surface]:
    v3, old = write_tiny(samples / "v3", "v3"), write_tiny(samples / "old", "v2-boson")
    (v3 / INDEX).unlink()
    write_gguf(v3, samples / "gguf" / "higgs.gguf", Q8_0)
    write_adapter(v3, samples / "lora", "patterns", by_hand=True)
    card = json.dumps({"languages": ["en", "de"], "tags": ["<|prosody:pause|>"], "one_voice": True}).encode()

    def opened(base: pathlib.Path, name: str, folder: str = "") -> dict:
        """Open a copy of a checkpoint, `folder` in `base`, with the input in place of one of the files in `base`."""

        def warm(place: pathlib.Path):
            shutil.copytree(base, place / base.name, dirs_exist_ok=True)

        def run(data: bytes, place: pathlib.Path):
            (place / base.name / name).write_bytes(data)
            with Engine(EngineConfig(str(place / base.name / folder), device="cpu", context=512)) as engine:
                return engine.speak(SAID, params=PARAMS)

        return {"samples": [(base / name).read_bytes()], "run": run, "warm": warm}

    def merged(data: bytes, place: pathlib.Path):
        target = place / "lora"
        target.mkdir(exist_ok=True)
        for path in (samples / "lora").iterdir():
            shutil.copy(path, target)
        is_weights = int.from_bytes(data[:8], "little") < 1 << 30
        (target / ("adapter_model.safetensors" if is_weights else "adapter_config.json")).write_bytes(data)
        return loaded(target)

    def beside(data: bytes, place: pathlib.Path):
        target = shutil.copytree(samples / "lora", place / "with modules", dirs_exist_ok=True)
        (target / AUDIO_MODULES).write_bytes(data)
        return loaded(target)

    def loaded(target: pathlib.Path):
        checkpoint = inspect(v3, adapters=[Adapter(str(target))])
        _short(checkpoint.adapters.warnings)
        return load_talker(checkpoint, CPU, torch.float32)

    def spoil_lora(rng: random.Random, data: bytes) -> bytes:
        return mutations.json_of(rng, data) if data.startswith(b"{") else mutations.safetensors_of(rng, data)

    def in_header(rng: random.Random, data: bytes) -> bytes:
        return mutations.bytes_of(rng, data, rng.choice((400, 4000, 24_000, None)), in_place=rng.random() < 0.7)

    ported = samples / "ported"  # a fine-tune without a codec, beside its base, which has one
    shutil.copytree(v3, ported / "base")
    write_port(v3, ported / "tuned", head=torch.randn(8208, 64, generator=torch.Generator().manual_seed(1)))
    codec = next(path for path in (old / "audio_tokenizer").iterdir() if path.suffix == ".pth")
    audio, weight = io.BytesIO(), torch.zeros(8208, 64)
    torch.save({"audio_embedding": {"weight": weight}, "audio_head": {"weight": weight}}, audio)
    lora = [(samples / "lora" / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")]
    return {
        "safetensors": Surface(spoil=mutations.safetensors_of, **opened(v3, "model.safetensors")),
        "port": Surface(spoil=mutations.safetensors_of, **opened(ported, "tuned/model.safetensors", "tuned")),
        "gguf": Surface(spoil=mutations.gguf_of, **opened(samples / "gguf", "higgs.gguf")),
        "pickle": Surface(spoil=in_header, **opened(old, f"audio_tokenizer/{codec.name}")),
        "config": Surface(spoil=mutations.json_of, **opened(v3, "config.json")),
        "config v2": Surface(spoil=mutations.json_of, **opened(old, "config.json")),
        "tokenizer": Surface(spoil=mutations.json_of, **opened(v3, "tokenizer.json")),
        "card": Surface([card], mutations.json_of, _carded),
        "lora": Surface(lora, spoil_lora, merged),
        "audio modules": Surface([audio.getvalue()], in_header, beside),
    }


def _carded(data: bytes, place: pathlib.Path):
    (place / CARD).write_bytes(data)
    found = read_card(place)
    return found.describe(), found.warnings(SAID), _short(found.notes)


def _short(sentences: tuple[str, ...]):
    """Check warnings and notes, which users read like errors."""
    for one in sentences:
        if len(one) > 1000 or "\n" in one:
            raise AssertionError(f"a warning of {len(one)} characters: {one[:100]!r}")


def _sounds(folder: pathlib.Path) -> dict[str, Surface]:
    import av
    import soundfile

    codes = torch.arange(400).reshape(50, 8)
    voice = Voice(codes, "What is said.", "Anna", "256+768").save(folder / "voice.safetensors").read_bytes()
    wave, clips = torch.sin(torch.arange(36_000) / 9).numpy(), []
    for kind, subtype in (("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAV", "GSM610"), ("FLAC", None),
                          ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None), ("AIFF", None), ("CAF", "ALAC_16"),
                          ("RF64", "PCM_16"), ("W64", "PCM_16"), ("AU", "PCM_16")):  # fmt: skip
        file = io.BytesIO()
        soundfile.write(file, wave, 24_000 if subtype != "GSM610" else 8000, format=kind, subtype=subtype)
        clips.append(file.getvalue())
    for container, encoder in (("ipod", "aac"), ("3gp", "aac"), ("webm", "libopus"), ("adts", "aac"), ("asf", "wmav2")):
        file = io.BytesIO()
        with av.open(file, "w", format=container) as packed:
            track = packed.add_stream(encoder, rate=48_000, layout="mono", options={"b": "64000"})
            frame = av.AudioFrame.from_ndarray(wave[None].repeat(2, 1), "flt", "mono")
            frame.sample_rate = 48_000
            packed.mux([*track.encode(frame), *track.encode(None)])
        clips.append(file.getvalue())

    def heard(data: bytes, place: pathlib.Path):
        path = place / "clip.wav"
        path.write_bytes(data)
        try:
            reference_of(*decode_clip(data))
        except RuntimeError as error:  # as its callers are told
            raise HiggsError(f"The clip cannot be read as audio ({error}).") from error
        return clip_seconds(path), reference_of(*read_clip(path))

    def loaded(data: bytes, place: pathlib.Path):
        path = place / "voice.safetensors"
        path.write_bytes(data)
        read_voice_head(path)
        return Voice.load(path)

    def in_header(rng: random.Random, data: bytes) -> bytes:
        return mutations.bytes_of(rng, data, rng.choice((48, 200, None)), in_place=rng.random() < 0.7)

    return {"voice": Surface([voice], mutations.safetensors_of, loaded), "clip": Surface(clips, in_header, heard)}


def _books(folder: pathlib.Path) -> dict[str, Surface]:
    def reader(suffix: str):
        def run(data: bytes, place: pathlib.Path):
            path = place / f"book{suffix}"
            path.write_bytes(data)
            book = read_book(path)
            _short(book.warnings)
            planned = plan_chapters(book, [], {})
            for turn in (turn for one in planned for turn in one.chapter.turns):
                split_script(read_pauses(turn.text, 0.5), 30.0)
            return [len(group) for group in groups(planned)]

        return run

    def spoil_zip(rng: random.Random, data: bytes) -> bytes:
        return mutations.zip_of(rng, data, TAGS)

    return {
        "epub": Surface([epub(folder / "sample.epub").read_bytes()], spoil_zip, reader(".epub")),
        "markdown": Surface([MARKDOWN.encode()], _as_text(MARKS), reader(".md")),
        "txt": Surface([TEXT.encode()], _as_text(LINES), reader(".txt")),
    }


def _as_text(tokens: tuple[str, ...]) -> Callable[[random.Random, bytes], bytes]:
    """Return a function that damages a text, and now and then its encoding."""

    def spoil(rng: random.Random, data: bytes) -> bytes:
        text = mutations.text_of(rng, data.decode(), tokens)
        encoding = rng.choice(("utf-8",) * 8 + ("utf-16", "cp1252"))
        data = text.encode(encoding, "replace")
        return mutations.bytes_of(rng, data) if rng.random() < 0.05 else data

    return spoil


def _texts() -> dict[str, Surface]:
    def reads(*readers: Callable[[str], object]):
        def run(data: bytes, place: pathlib.Path):
            text = data.decode("utf-8", "replace")
            ends = []
            for read in readers:  # all of them, even if the first one fails
                try:
                    read(text)
                except HiggsError as error:
                    ends.append(error)
            if ends:
                raise max(ends, key=lambda error: len(str(error)))

        return run

    def cues(text: str):
        sheet = read_cues(text)
        _short(sheet.warnings)
        return sheet.said_as(read_pronunciations(LIST)).speakers, cue_names(text)

    def script(text: str):
        _short(read_dialogue(text).warnings)

    def hints(text: str):
        dialogue = read_dialogue(text, script_names(text)[1])
        _short(tuple(hint.says for hint in text_check_before().hints(dialogue.said, dialogue.unsaid)))

    planned = functools.partial(planned_seconds, params=SamplingParams(paragraph_gap=0.5), is_dialogue=False)
    return {
        "text": Surface([SAID.encode()], _as_text(PAUSES), reads(hints, lambda text: planned([Turn("", text)]))),
        "script": Surface(
            [SCRIPT.encode()],
            _as_text((*NAMES, *PAUSES)),
            reads(
                script,
                script_names,
                lambda text: read_dialogue(text, ["Anna", "Tom"]),
                hints,
                lambda text: read_book_text(text, "A", is_script=True),
            ),
            limit=12.0,  # five readers of up to 600,000 characters
        ),
        "subtitles": Surface([SRT.encode(), VTT.encode()], _as_text(CUES), reads(cues)),
        "sheet": Surface(
            [sheet.encode() for sheet in SHEETS],
            _as_text(SHEET),
            reads(read_lines, lambda text: with_seed(text, read_lines(text)[0].id, 5)),
        ),
        "pronunciations": Surface(
            [LIST.encode()], _as_text(WORDS), reads(lambda text: read_pronunciations(text).apply(SAID * 20, "Anna"))
        ),
    }
