"""Parsers of untrusted input, with strategies of hypothesis that make input for them, and what was once found.

`PARSERS` maps a name to a Parser. `outcome` runs one on an input.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from higgs_tts.engine import (
    Adapter,
    HiggsError,
    Voice,
    cue_names,
    mouth_of,
    read_book,
    read_cues,
    read_dialogue,
    read_lines,
    read_pronunciations,
    read_voice_head,
    read_words,
    script_names,
)
from higgs_tts.engine.checkpoint.adapter_files import AUDIO_MODULES, adapter_files
from higgs_tts.engine.checkpoint.hf_config import read_settings
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_tensors
from higgs_tts.engine.engines.remote import wire
from higgs_tts.engine.files.gguf_header import read_gguf
from higgs_tts.engine.files.json_file import read_json
from higgs_tts.engine.files.plain_text import decode_text
from higgs_tts.engine.finetune.recordings import read_table
from higgs_tts.engine.finetune.run_state import read_state
from higgs_tts.engine.prompt.card import CARD, read_card
from higgs_tts.engine.prompt.incoming import GRANULARITIES, IncomingText
from higgs_tts.engine.prompt.spell_out import spell_out
from higgs_tts.engine.serve.batch import read_batch
from higgs_tts.engine.serve.bodies import parse_form, parse_json
from higgs_tts.engine.serve.calls import read_call
from higgs_tts.engine.serve.text_session import read_session
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests.fuzz_inputs import (
    CONFIGS,
    FORM,
    GGUF,
    HEADER,
    JSON,
    MARKDOWN,
    SCRIPT,
    SHEET,
    SRT,
    TYPE,
    VOICE,
    as_json,
    changed,
    epubs,
    safetensors,
    text_of,
)
from higgs_tts.tests.peft_files import write_adapter
from hypothesis import strategies as st

SENTENCE = 1000  # characters of a message at most


@dataclass(frozen=True)
class Parser:
    """inputs: makes input. read(input, folder): parses it, in an empty folder. found: inputs that once failed."""

    inputs: st.SearchStrategy
    read: Callable[..., object]
    found: tuple = ()


def outcome(parser: Parser, given: object) -> str:
    """Return "" if the input has a value, else the message of its HiggsError. Raises what is a defect."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            parser.read(given, Path(folder))
            return ""
        except HiggsError as error:
            said = str(error)
    assert said and len(said) <= SENTENCE and "\n" not in said, f"a message of {len(said)} characters: {said[:200]!r}"
    return said


# Checkpoints


def _read_safetensors(data: bytes, folder: Path):
    (folder / "a.safetensors").write_bytes(data)
    opened = open_tensors([folder / "a.safetensors"])
    return [opened.get(name, torch.device("cpu")) for name in opened.shapes]


def _read_gguf(data: bytes, folder: Path):
    (folder / "a.gguf").write_bytes(data)
    header = read_gguf(folder / "a.gguf")
    return header.embedded("config.json"), [header.array(name) for name in header.arrays]


def _read_config(given: tuple[str, object], folder: Path):
    layout, config = given
    (folder / "config.json").write_bytes(as_json(config))
    return read_settings(read_json(folder / "config.json"), folder / "config.json", layout)


def _read_card(card: object, folder: Path):
    (folder / CARD).write_bytes(as_json(card))
    found = read_card(folder)
    for note in found.notes:
        assert len(note) <= SENTENCE and "\n" not in note, note
    return found.describe(), found.warnings("Hello.")


@functools.cache
def _with_adapter() -> tuple[Path, Path, dict]:
    """Return (tiny checkpoint, LoRA of it, the LoRA's settings), made once."""
    place = Path(tempfile.mkdtemp(prefix="higgs_fuzzed_"))
    base = write_tiny(place / "v3", "v3")
    write_adapter(base, place / "lora", "patterns", by_hand=True)
    return base, place / "lora", json.loads((place / "lora" / "adapter_config.json").read_text())


def _read_lora(settings: object, folder: Path):
    base, lora, _ = _with_adapter()
    shutil.copytree(lora, folder, dirs_exist_ok=True)
    (folder / "adapter_config.json").write_bytes(as_json(settings))
    adapter_files(folder)
    checkpoint = inspect(base, adapters=[Adapter(str(folder))])
    return load_talker(checkpoint, torch.device("cpu"), torch.float32)


def _read_audio_modules(table: object, folder: Path):
    base, lora, _ = _with_adapter()
    shutil.copytree(lora, folder, dirs_exist_ok=True)
    torch.save(_with_tensors(table), folder / AUDIO_MODULES)
    checkpoint = inspect(base, adapters=[Adapter(str(folder), partial=True)])
    return load_talker(checkpoint, torch.device("cpu"), torch.float32)


def _with_tensors(value: object) -> object:
    """Return the value with a tensor in place of each list that is a small shape."""
    if isinstance(value, dict):
        return {name: _with_tensors(one) for name, one in value.items()}
    is_shape = isinstance(value, list) and all(type(size) is int and 0 <= size < 10_000 for size in value)
    return torch.zeros(value) if is_shape and math.prod(value) < 1 << 20 else value


def _read_voice(given: tuple[dict, dict, bytes], folder: Path):
    metadata, codes, data = given
    header = as_json({"codes": codes, "__metadata__": metadata})
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    read_voice_head(folder / "a.safetensors")
    return Voice.load(folder / "a.safetensors")


def _read_epub(files: dict[str, str], folder: Path):
    with zipfile.ZipFile(folder / "a.epub", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text.encode("utf-8", "surrogatepass"))
    return _checked(read_book(folder / "a.epub").warnings)


def _checked(warnings: tuple[str, ...]):
    for one in warnings:
        assert len(one) <= SENTENCE and "\n" not in one, one


def _read_markdown(text: str, folder: Path):
    (folder / "a.md").write_bytes(text.encode("utf-8", "surrogatepass"))
    return _checked(read_book(folder / "a.md").warnings)


_ENCODINGS = ("utf-8", "utf-16", "utf-16-be", "utf-32-le", "cp1252", "mac_roman", "cp1251", "cp932", "gb18030", "cp949")


def _read_text(data: bytes, folder: Path):
    text, warnings = decode_text(data, "a.txt")
    assert "\ufffd" not in text or any("cannot be read" in one for one in warnings), text
    return _checked(warnings)


def _read_clip_table(text: str, folder: Path):
    (folder / "metadata.csv").write_bytes(text.encode(errors="replace"))
    return read_table(folder / "metadata.csv")


def _read_training_state(held: object, folder: Path):
    """A damaged state is none, so that a training begins anew."""
    header = json.dumps({"__metadata__": {"state": json.dumps(held)}}).encode()
    (folder / "state.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    state = read_state(folder / "state.safetensors", "one")
    assert state.fingerprint == "one"
    return state.step


def _read_cues(text: str, folder: Path):
    cue_names(text)
    return _checked(read_cues(text).warnings)


def _read_script(text: str, folder: Path):
    script_names(text)
    return _checked(read_dialogue(text).warnings)


def _read_words(text: str, folder: Path):
    mouth_of(read_words(text), 2.0).to_json()


def _read_spelled_out(text: str, folder: Path):
    found = spell_out(text, "en")
    assert found.as_written(0, len(found.text))[1] == len(text) and found.part(0, len(text)) == found.text


def _read_pronunciations(text: str, folder: Path):
    return read_pronunciations(text).apply("Hello, Nguyen and a = b.", "Anna")


_WORD = {"word": "Hello,", "start": 0.5, "end": 1.0, "speaker": "Anna", "method": "attention"}

# Calls

_CALL = {
    "model": "tts-1",
    "input": "Hi.",
    "voice": "alloy",
    "response_format": "wav",
    "speed": 1.0,
    "seed": 3,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "stream": True,
    "stream_format": "sse",
    "extra_params": {"seed": 4},
    "scene": "A room.",
    "index": 1,
    "retries": 0,
    "max_new_tokens": 12,
}
_CLIP = {"input": "Hi.", "references": [{"audio_path": "UklGRg==", "text": "A text."}], "ref_text": "A text."}
_BATCH = {"items": [{"input": "Hi.", "seed": 3}, {"input": "No."}], "voice": "alloy", "response_format": "wav"}
_SESSION = {
    "type": "session.config",
    "session": {"voice": "alloy", "split_granularity": "sentence", "stream_audio": True},
}
_BESIDE = {"type": "session.config", "voice": "alloy", "split_granularity": "word", "speed": 1.5, "seed": None}


def _read_call(body: object, folder: Path):
    return read_call(parse_json(as_json(body)), 4096, lambda tag: True)


def _read_batch(body: object, folder: Path):
    return read_batch(parse_json(as_json(body)), 16, lambda fields: read_call(fields, 4096, lambda tag: True))


_ORDER = {
    "version": 1,
    "model": "",
    "text": "Hello.",
    "scene": None,
    "index": 0,
    "budget": 100,
    "params": {"seed": 3, "temperature": 0.8, "top_k": 30, "ban_specials": True},
    "check": True,
    "listened": False,
    "voice": {"frames": 2, "codebooks": 2, "transcript": "What it says."},
    "codes": {"frames": 1, "codebooks": 2, "ended": True},
}
_DOUBT = ["again", "some words", 0, 2, 0, 1]
_VERDICT = {"method": "attention", "starts": [0], "fixed": 0, "passages": [[0, 1, 0, 1, [_DOUBT]]], "heard": [_DOUBT]}
_PIECE = {"frames": 1, "samples": 2, "cleared": 1, "ended": True, "verdict": _VERDICT}
_PIECE["codes"] = {"frames": 1, "codebooks": 2}


def _lines(head: object, size: int) -> st.SearchStrategy[bytes]:
    """Return lines of JSON with binary data behind them, most often as long as they say."""
    rest = st.just(bytes(size)) | st.binary(max_size=2 * size)
    return st.builds(lambda line, data: as_json(line) + b"\n" + data, changed(head) | JSON, rest)


def _read_wire_answer(data: bytes, folder: Path):
    line, _, rest = data.partition(b"\n")
    head, size = wire.piece_sizes(line)
    return wire.read_piece(head, rest[:size], 2)


def _read_form(given: tuple[bytes, str], folder: Path):
    return parse_form(*given)


def _read_message(message: object, folder: Path):
    message = parse_json(as_json(message))
    if isinstance(message, dict):  # anything else is refused before
        session = read_session(message, 4096, lambda tag: True)
        session.call_for("A word.", 1)


def _read_raw(data: bytes, folder: Path):
    return parse_json(data)


def _read_incoming(pieces: list[str], folder: Path):
    for granularity in GRANULARITIES:
        found = []
        for given in (pieces, ["".join(pieces)]):
            text = IncomingText(granularity)
            found.append([unit for piece in given for unit in text.add(piece)] + text.flush())
        assert all(found[0]), "a unit is empty"
        assert found[0] == found[1], "units depend on the pieces"


PARSERS = {
    "safetensors": Parser(
        st.builds(safetensors, changed(HEADER).map(as_json), st.just(24) | st.integers(0, 40)) | st.binary(max_size=64),
        _read_safetensors,
    ),
    "gguf": Parser(GGUF | st.binary(max_size=64), _read_gguf),
    "config": Parser(
        st.sampled_from(sorted(CONFIGS)).flatmap(lambda name: st.tuples(st.just(name), changed(CONFIGS[name]))),
        _read_config,
    ),
    "card": Parser(changed({"languages": ["en"], "tags": ["<|prosody:pause|>"], "one_voice": True}) | JSON, _read_card),
    "lora": Parser(st.deferred(lambda: changed(_with_adapter()[2])), _read_lora),
    "audio modules": Parser(
        changed({module: {"weight": [8208, 64]} for module in ("audio_embedding", "audio_head")}), _read_audio_modules
    ),
    "voice": Parser(VOICE, _read_voice),
    "epub": Parser(epubs(), _read_epub),
    "markdown": Parser(MARKDOWN, _read_markdown),
    "text file": Parser(
        st.binary(max_size=400)
        | st.tuples(SCRIPT, st.sampled_from(_ENCODINGS)).map(lambda one: one[0].encode(one[1], "replace")),
        _read_text,
    ),
    "clip table": Parser(
        text_of("file,text\n", "a.wav", "|", "\t", ";", ",", '"', "\n", "metadata", "\\", "\0"), _read_clip_table
    ),
    "training state": Parser(
        changed({"fingerprint": "one", "step": 2, "best_step": 2, "best": [0.0, 1.5], "history": [{"step": 2}]}),
        _read_training_state,
    ),
    "subtitles": Parser(SRT, _read_cues),
    "script": Parser(SCRIPT, _read_script),
    "sheet": Parser(
        SHEET | changed([{"id": "a", "text": "Hi.", "seed": 4}]).map(json.dumps), lambda text, _: read_lines(text)
    ),
    "pronunciations": Parser(
        text_of("a = b\n", "=", "[Anna]\n", "#", "Nguyen = Win\n", "\\", "("), _read_pronunciations
    ),
    "spelled out": Parser(
        text_of(
            "At 06:32 ", "$5m ", "1,250.5", "NASA ", "St. ", "Chapter IV", "\u2022 ", "5 - 3", "a@b.com ", "\ufb01"
        ),
        _read_spelled_out,
    ),
    "words": Parser(changed({"words": [_WORD, _WORD]}).map(json.dumps) | JSON.map(as_json), _read_words),
    "call": Parser(changed(_CALL) | changed(_CLIP) | JSON, _read_call),
    "batch": Parser(changed(_BATCH) | JSON, _read_batch),
    "order": Parser(_lines(_ORDER, 12), lambda data, _: wire.read_order(data)),
    "clip order": Parser(
        _lines({"version": 1, "sample_rate": 24000, "channels": 2, "transcript": None}, 16),
        lambda data, _: wire.read_clip_order(data),
    ),
    "answer": Parser(_lines(_PIECE, 12), _read_wire_answer),
    "encoded clip": Parser(
        _lines({"frames": 2, "codebooks": 2, "codec": "a", "warnings": ["b"]}, 8),
        lambda data, _: wire.read_voice(data, None, ""),
    ),
    "form": Parser(st.tuples(FORM.map(b"".join), TYPE), _read_form),
    "message": Parser(
        changed(_SESSION) | changed(_BESIDE), _read_message, ({"type": "session.config", "session": {"\n": 1}},)
    ),
    "json": Parser(st.binary(max_size=40) | JSON.map(as_json), _read_raw),
    "incoming": Parser(st.lists(text_of("A sentence. ", "?", "[pause 1]", "<|"), max_size=5), _read_incoming),
}
