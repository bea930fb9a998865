"""Our own server as a node uses it: the same speech as from the engine behind it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time

import pytest
import torch
from higgs_tts.engine import (
    Engine,
    EngineConfig,
    HiggsError,
    Listener,
    RemoteEngine,
    SamplingParams,
    ServerConfig,
    Turn,
    Voice,
    narrate,
    read_book_text,
)
from higgs_tts.engine.audio import pcm
from higgs_tts.engine.engines import engine as engine_module

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.engines.remote import find, wire
from higgs_tts.engine.engines.remote.connections import Connections
from higgs_tts.engine.engines.remote.wire import WirePiece
from higgs_tts.engine.prompt.card import CARD, ModelCard
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.voice.reference import reference_of
from higgs_tts.tests.speech_servers import running

TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five".split())
PARAMS = SamplingParams(seed=(1 << 63) + 5, max_frames=25, chunk_seconds=3, retries=0, temperature=0.9, top_k=0)
SECOND = 24_000


@pytest.fixture(scope="module")
def folder(written, tmp_path_factory):
    folder = shutil.copytree(written["v3"], tmp_path_factory.mktemp("served") / written["v3"].name)
    (folder / CARD).write_text(
        '{"languages": ["en"], "tags": ["<|prosody:pause|>"], "one_voice": true}', encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    with Engine(EngineConfig(str(folder), device="cpu", context=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def local(folder):
    """A second engine, for its own speech."""
    with Engine(EngineConfig(str(folder), device="cpu", context=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def served(engine):
    with running(engine, key="secret") as (port, speaker):
        yield port, speaker


@pytest.fixture
def remote(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    return RemoteEngine(ServerConfig(f"127.0.0.1:{served[0]}"))


def clip():
    return torch.rand(2 * SECOND, generator=torch.Generator().manual_seed(1)) - 0.5


def test_a_long_text_equals_the_engine_s_speech_chunk_by_chunk(remote, local):
    """With a voice."""
    theirs = remote.speak(TEXT, remote.encode_voice(clip(), SECOND, "What it says."), PARAMS)
    ours = local.speak(TEXT, local.encode_voice(clip(), SECOND, "What it says."), PARAMS)
    assert theirs.chunks == ours.chunks == 5 and same(theirs, ours)
    assert theirs.stopped == ours.stopped and theirs.how == f"{remote.found.servers[0].label} (5 chunks)"


@pytest.mark.parametrize("listener", [None, Listener(on_audio=lambda wav: None)], ids=["whole", "streamed"])
@pytest.mark.parametrize("frames", [8, 25])
def test_without_a_voice_all_chunks_equal_the_engine_s(remote, local, frames, listener):
    """The first chunk's codes are the voice of the others."""
    params = dataclasses.replace(PARAMS, max_frames=frames)
    theirs, ours = remote.speak(TEXT, params=params, listener=listener), local.speak(TEXT, params=params)
    assert theirs.chunks == ours.chunks == 5 and torch.equal(theirs.codes, ours.codes)
    assert torch.allclose(theirs.wav, ours.wav, atol=1e-5)


def test_two_addresses_share_the_work(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    port = served[0]
    several = RemoteEngine(ServerConfig(f"127.0.0.1:{port}\nlocalhost:{port}", calls=2))
    one = RemoteEngine(ServerConfig(f"127.0.0.1:{port}", calls=2))
    voice = one.encode_voice(clip(), SECOND)
    assert several.speak(TEXT, voice, PARAMS).wav.equal(one.speak(TEXT, voice, PARAMS).wav)


def test_the_server_s_model_card_is_used(remote):
    assert remote.planner.card == ModelCard(("en",), ("<|prosody:pause|>",), True)
    assert remote.planner.knows_tag("<|prosody:pause|>") and not remote.planner.knows_tag("<|emotion:awe|>")
    speech = remote.speak("Look <|emotion:awe|>at that.", params=PARAMS)
    assert any("has not learned <|emotion:awe|>" in warning for warning in speech.warnings)


def test_the_server_s_key_is_required(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "wrong")
    with pytest.raises(HiggsError, match="refused the key: the key is missing or wrong") as refused:
        RemoteEngine(ServerConfig(f"127.0.0.1:{served[0]}")).speak("Hello.")
    assert "secret" not in str(refused.value)


def test_a_voice_of_the_server_is_used_by_name(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    address = f"127.0.0.1:{served[0]}"
    by_name = RemoteEngine(ServerConfig(address, voice="Amber")).speak("Hello there.", params=PARAMS)
    assert not by_name.wav.equal(RemoteEngine(ServerConfig(address)).speak("Hello there.", params=PARAMS).wav)
    with pytest.raises(HiggsError, match=r"has no voice 'nobody'\. Choose one of: default, amber"):
        RemoteEngine(ServerConfig(address, voice="nobody")).speak("Hello there.")


def test_cancel_frees_the_server_s_rows(remote, served):
    class Stop(BaseException):
        pass

    def stop(done, expected):
        if served[1].speaking:
            raise Stop

    with pytest.raises(Stop):
        remote.speak(TEXT, params=SamplingParams(seed=3, max_frames=400, retries=0), listener=Listener(on_frame=stop))
    deadline = time.monotonic() + 60
    while served[1].speaking:
        assert time.monotonic() < deadline, "the server speaks on"
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.name.startswith("Higgs TTS 127.0.0.1"):
            thread.join(30)
            assert not thread.is_alive()


def test_a_clip_is_encoded_once_for_all_chunks(remote, monkeypatch):
    made, encode = [], engine_module.open_encoder
    monkeypatch.setattr(engine_module, "open_encoder", lambda *given: made.append(1) or encode(*given))
    voice = remote.encode_voice(clip() * 0.5, SECOND, "Something else.")
    remote.speak(TEXT, voice, PARAMS)  # five calls at a time
    remote.speak("Hello there.", voice, PARAMS)
    assert len(made) == 1


def test_a_voice_of_the_same_model_is_used_and_another_model_s_refused_with_the_remedy(remote, local):
    voice = local.encode_voice(clip(), SECOND)
    assert same(remote.speak("Hello.", voice, PARAMS), local.speak("Hello.", voice, PARAMS))
    other = dataclasses.replace(voice, codec="another")
    with pytest.raises(HiggsError, match="Make the voice again from its clip, with Higgs TTS Server"):
        remote.speak("Hello.", other)


def test_a_voice_that_holds_its_clip_is_encoded_by_the_server(remote, local):
    """Such as one made for servers of others."""
    frames = pcm.to_frames(reference_of(clip(), SECOND)[0])
    voice = Voice(frames, "What it says.", "", pcm.CODEC)
    own = local.encode_voice(voice.wav(), SECOND, "What it says.")
    assert same(remote.speak("Hello.", voice, PARAMS), local.speak("Hello.", own, PARAMS))


def test_a_dialogue_is_reused_and_equals_the_engine_s(remote, local):
    turns = [Turn(("Ann", "Bob")[number % 2], f"This is turn number {number}.") for number in range(4)]
    theirs, ours = (one.speak_turns(turns, {}, PARAMS) for one in (remote, local))
    again = remote.speak_turns([*turns, Turn("Ann", "Another.")], {}, PARAMS)
    assert same(theirs, ours) and theirs.turns == ours.turns and again.reused == 4
    assert again.codes[: len(ours.codes)].equal(ours.codes)


def test_a_book_is_the_same_to_the_byte_and_goes_on_elsewhere(remote, local, tmp_path):
    book = read_book_text("# One\n\nA boat came in.\n\n# Two\n\nIt was full of birds.", "A book")
    for name, engine in {"theirs": remote, "ours": local}.items():
        narrate(engine, book, tmp_path / name, {}, PARAMS)
    made = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir() if path.is_file()} == made
    assert not any(file.made for file in narrate(remote, book, tmp_path / "ours", {}, PARAMS).files)


def test_a_server_of_another_version_speaks_without_codes_and_says_so(remote, local, monkeypatch):
    monkeypatch.setattr(wire, "VERSION", 2)
    ours = remote.connect()
    monkeypatch.undo()
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    assert ours.wire is not None
    server = ours.servers[0]
    with monkeypatch.context() as patch:
        patch.setattr(find, "wire_of", lambda told: None)
        speech = remote.speak("Hello there.", params=PARAMS)
    assert speech.codes.shape[1] == 960 and any("of another version" in warning for warning in speech.warnings)
    order = wire.pack_order(local.planner.chunk("Hello.", None, None, PARAMS, 0, 100), "")
    body = order.replace(b'"version": 1', b'"version": 7')
    answer = Connections().ask(server.address, "POST", wire.CHUNK, body)
    assert answer.status == 400 and "Install the same version" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("head", "rest", "says"),
    [
        (b"no JSON", b"", "not JSON"),
        (b"[1]", b"", "not a JSON object"),
        ({"index": -1}, b"", "index is -1"),
        ({"index": True}, b"", "index is True"),
        ({"params": {"seed": 1.5}}, b"", "seed is 1.5"),
        ({"params": {"top_k": -1}}, b"", "top_k is -1"),
        ({"params": {"chunk_seconds": 3}}, b"", "params must be"),
        ({"voice": {"frames": 9, "codebooks": 8, "transcript": None}}, b"\0\0", "shorter than it says"),
        ({"voice": {"frames": 1 << 30, "codebooks": 8}}, b"", "frames is 1073741824"),
        ({"voice": 7}, b"", "voice must be a name"),
        ({"voice": "nobody"}, b"", "no voice 'nobody'"),
        ({"codes": {"frames": 1, "codebooks": 2, "ended": True}}, b"\0\0\0\0", "has 2 codebooks, but the model has 8"),
        ({"codes": {"frames": 1, "codebooks": 1, "ended": True}}, b"\xff\xff", "do not lie in 0..1025"),
        ({}, b"more", "longer than it says"),
        ({"text": ""}, b"", "nothing to speak"),
        ({"text": "a" * 30_000}, b"", "text has 30000 characters"),
        ({"check": None}, b"", "check must be true or false"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_refused(remote, local, head, rest, says):
    line, _, _ = wire.pack_order(local.planner.chunk("Hello.", None, None, PARAMS, 0, 100), "").partition(b"\n")
    line = head if isinstance(head, bytes) else json.dumps(json.loads(line) | head).encode()
    answer = Connections().ask(remote.found.servers[0].address, "POST", wire.CHUNK, line + b"\n" + rest)
    assert answer.status in (400, 404) and says in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [wire.CHUNK, wire.VOICE])
def test_codes_take_the_key_and_no_page(remote, path):
    address = remote.found.servers[0].address
    assert Connections().ask(dataclasses.replace(address, variable="HIGGS_TTS_NONE"), "POST", path, b"{}").status == 401


def test_verdicts_and_pieces_come_back_as_they_were_told():
    doubt = Doubt("again", "some words", (1, 3), (10, 20))
    verdict = Verdict("attention", (0, 10), (Passage((1, 2), (10, 30), (doubt,)),), 5, (doubt,))
    codes = torch.arange(24).view(3, 8)
    for piece in (WirePiece(3, torch.rand(50), 40, codes, True, verdict), WirePiece(0, torch.empty(0))):
        line, rest = wire.unpacked(wire.pack_piece(piece))
        head, size = wire.piece_sizes(json.dumps(line).encode())
        assert size == len(rest)
        read = wire.read_piece(head, rest, 8)
        assert read.wav.equal(piece.wav) and (read[0], read[2], read[4:]) == (piece[0], piece[2], piece[4:])
        assert piece.codes is None if read.codes is None else read.codes.equal(piece.codes)


@pytest.mark.parametrize(
    ("change", "rest"),
    [
        ({"frames": -1}, b""),
        ({"samples": 1}, b"\0\0\xc0\x7f"),  # NaN
        ({"codes": {"frames": 1, "codebooks": 2}, "ended": True, "verdict": None}, b"\0\0\0\0"),
        ({"codes": {"frames": 0, "codebooks": 8}, "ended": True, "verdict": {}}, b""),
        ({"codes": {"frames": 0, "codebooks": 8}, "ended": 1, "verdict": None}, b""),
        ({"codes": {"frames": 0, "codebooks": 8}, "ended": True, "verdict": {"method": "attention", "starts": [0],
          "passages": [[0, 7, 0, 1, []]], "fixed": 0, "heard": []}}, b""),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_refused(change, rest):
    with pytest.raises(HiggsError):
        wire.read_piece({"frames": 0, "samples": 0, "cleared": None} | change, rest, 8)


def same(theirs, ours):
    return torch.equal(theirs.codes, ours.codes) and torch.equal(theirs.wav, ours.wav)
