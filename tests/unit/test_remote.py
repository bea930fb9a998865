"""Servers as an engine: one queue of chunks, robust against failing servers. Fakes stand for other servers."""

from __future__ import annotations

import base64
import io
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile
import torch
from higgs_tts.engine import (
    BUILT_IN_CLIPS,
    EMBEDDED,
    CueParams,
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
    read_clip,
    read_cues,
    speak_cues,
)
from higgs_tts.engine.engines.pool import pool
from higgs_tts.engine.engines.remote.connections import Connections
from higgs_tts.tests.speech_servers import Fake, Reply, refusal, sound_of, spoken, wav_file

ONE = "One sentence is all that there is."
FIVE = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five".split())
PARAMS = SamplingParams(seed=3, chunk_seconds=3, retries=0)
KEY = "HIGGS_TTS_API_KEY"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Servers rest for a moment only."""
    monkeypatch.setattr(pool, "FIRST_REST", 0.01)
    monkeypatch.setattr(pool, "LONGEST_REST", 0.05)
    monkeypatch.delenv(KEY, raising=False)


def engine_of(*fakes, **settings):
    return RemoteEngine(ServerConfig("\n".join(fake.address for fake in fakes), **settings))


def a_voice(name="Anna"):
    wav, rate = read_clip(BUILT_IN_CLIPS / "amber.flac")
    return RemoteEngine(ServerConfig("here")).encode_voice(wav[:, :48_000], rate, "What it says.", name)


def texts(fake):
    return [call["input"] for call in fake.calls]


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_a_long_text_is_split_and_joined_locally(kind):
    with Fake(kind) as fake:
        engine = engine_of(fake)
        speech = engine.speak(FIVE, a_voice(), PARAMS)
        assert speech.complete and speech.chunks == len(fake.calls) == 5 and not speech.warnings
        assert sorted(texts(fake)) == sorted(chunk.text for chunk in speech.said)
        for chunk in speech.said:
            wanted = torch.from_numpy(sound_of(chunk.text))
            heard = speech.wav[chunk.start : chunk.stop][: len(wanted)]
            assert (heard[200:-1200] - wanted[200:-1200]).abs().max() < 1e-4  # all but the edges, which are faded
        assert speech.frames == len(speech.codes) and speech.seconds == pytest.approx(speech.frames / 25)
        name = {"sglang": "SGLang-Omni", "vllm": "vLLM-Omni"}[kind]
        assert (
            speech.how == f"{name} at {fake.address} (5 chunks)"
            and engine.label == f"higgs on {name} at {fake.address}"
        )
        assert len({call["seed"] for call in fake.calls}) == 5 and {call["model"] for call in fake.calls} == {"higgs"}
        assert {call["ref_text"] for call in fake.calls} == {"What it says."}


def test_pauses_are_exact_and_never_sent():
    with Fake() as fake:
        speech = engine_of(fake).speak("One apple. [pause 2] Two pears.", a_voice(), PARAMS)
        assert sorted(texts(fake)) == ["One apple.", "Two pears."]
        first, second = speech.said
        assert second.start - first.stop == 48_000


def test_the_first_chunk_is_the_voice_of_the_rest_if_none_is_given():
    with Fake() as fake:
        speech = engine_of(fake).speak(FIVE, None, PARAMS)
        first, *rest = fake.calls
        assert "ref_audio" not in first and first["seed"] == 3 and len(rest) == 4
        clips = {call["ref_audio"] for call in rest}
        clip, rate = soundfile.read(io.BytesIO(base64.b64decode(clips.pop().partition(",")[2])), dtype="float32")
        said = sound_of(first["input"])
        assert not clips and rate == 24_000 and np.abs(clip[: len(said)] - said).max() < 1e-4
        assert {call["ref_text"] for call in rest} == {first["input"]} and speech.complete


def test_a_server_s_voice_is_used_by_name():
    names = {"/v1/audio/voices": {"voices": ["default", {"name": "Jake"}]}}
    with Fake(**names) as fake:
        engine_of(fake, voice="jake").speak(FIVE, None, PARAMS)
        assert {call["voice"] for call in fake.calls} == {"jake"} and len(fake.calls) == 5
        assert not any("ref_audio" in call for call in fake.calls)
        engine_of(fake, voice="jake").speak(ONE, a_voice(), PARAMS)
        assert "ref_audio" in fake.calls[-1] and "voice" not in fake.calls[-1]
        with pytest.raises(HiggsError, match=r"has no voice 'nobody'\. Choose one of: default, Jake\."):
            engine_of(fake, voice="nobody").speak(ONE)


def test_concurrent_calls_are_spread_over_servers():
    together = threading.Barrier(4)

    def reply(number, body):
        together.wait(60)  # all four at once, or never
        return spoken(body)

    with Fake("sglang", reply) as one, Fake("vllm", reply) as two:
        speech = engine_of(one, two, calls=2).speak(
            " ".join(FIVE.split(". ")[0] + f" {word}." for word in "a b c d".split()), a_voice(), PARAMS
        )
        assert (len(one.calls), len(two.calls), speech.chunks) == (2, 2, 4)
        assert speech.how == f"SGLang-Omni at {one.address} (2 chunks), vLLM-Omni at {two.address} (2 chunks)"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refusal(401, "Wrong key."), rf"refused the key: Wrong key\. Put the correct key into .* {KEY}\."),
        (refusal(404, "The model `x` does not exist."), "has no such model, voice or path: The model `x`"),
        (refusal(400, "ref_audio is too short"), "refused the call: ref_audio is too short"),
        (Reply(b'{"detail": [{"loc": ["body", "input"], "msg": "Required"}]}', 422), "body.input: Required"),
        (refusal(413, "Too large"), "refused the call as too large: Too large. Use a shorter reference clip"),
        (refusal(500, "CUDA error"), "failed: CUDA error"),
        (refusal(302, "", {"Location": "http://elsewhere"}), "has moved to http://elsewhere. Enter that address"),
        (Reply(b"<html>Sign in</html>", headers={"Content-Type": "text/html"}), "returned text/html instead of audio"),
        (Reply(b'{"error": {"message": "dead"}}', headers=JSON), "instead of audio: dead"),
        (Reply(b"RIFF....WAVEnothing"), "returned audio/wav instead of audio"),
        (Reply(wav_file(np.zeros(0, "float32"))), "returned empty audio"),
        (Reply(wav_file(np.full(9000, np.nan, "float32"), subtype="FLOAT")), "invalid values"),
        (Reply(wav_file(sound_of(ONE)), cut=True), "closed the connection before its answer was complete"),
    ],
)  # fmt: skip
def test_a_server_s_mistake_is_reported_with_its_name(reply, error):
    with Fake(reply=lambda number, body: reply) as fake:
        with pytest.raises(HiggsError, match=error) as failed:
            engine_of(fake).speak(ONE, a_voice(), PARAMS)
        assert str(failed.value).startswith(f"SGLang-Omni at {fake.address} ")
        assert len(fake.calls) in (1, 3)  # once, or until it is given up


def test_a_silent_server_is_abandoned():
    silent = Fake(reply=lambda number, body: Reply(hangs=True))
    with silent as fake, pytest.raises(HiggsError, match="did not answer within"):
        engine_of(fake, timeout=0.3).speak(ONE, a_voice(), PARAMS)


def test_a_busy_server_is_retried():
    def reply(number, body):
        headers = {"Retry-After": "0.01"} if number % 2 else {"Retry-After": "Mon, 23 Nov 2026 06:00:00 GMT"}
        return refusal(503 if number < 6 else 429, "queue full", headers) if number < 8 else spoken(body)

    with Fake(reply=reply) as fake:
        speech = engine_of(fake).speak(ONE, a_voice(), PARAMS)
        assert speech.complete and len(fake.calls) == 8


def test_busy_replies_do_not_count_as_failures():
    """Two times busy and two failures are not three failures in a row."""
    replies = [refusal(429, "queue full"), refusal(429, "queue full"), refusal(500, "x"), refusal(500, "x")]
    with Fake(reply=lambda number, body: replies[number - 1] if number < 5 else spoken(body)) as fake:
        assert engine_of(fake).speak(ONE, a_voice(), PARAMS).complete and len(fake.calls) == 5


def test_a_reply_cut_once_is_retried():
    with Fake(
        reply=lambda number, body: Reply(wav_file(sound_of(ONE)), cut=True) if number == 1 else spoken(body)
    ) as fake:
        speech = engine_of(fake).speak(FIVE, a_voice(), PARAMS)
        assert speech.complete and len(fake.calls) == 6 and not speech.warnings


@pytest.mark.parametrize("why", ["dies", "refuses"])
def test_a_lost_server_s_chunks_go_to_the_others(why):
    asked = threading.Event()
    named = lambda thread, fake: thread.name == f"Higgs TTS {fake.address}"  # noqa: E731
    failure = Reply(b"RIFF", cut=True) if why == "dies" else refusal(401, "No.")

    def fails(number, body):
        asked.set()
        return failure

    def waits(number, body):
        """Wait until the other server is given up."""
        asked.wait(60)
        wanted = 3 if why == "dies" else 1
        while len(bad.calls) < wanted or any(named(thread, bad) for thread in threading.enumerate()):
            time.sleep(0.01)
        return spoken(body)

    with Fake("sglang", fails) as bad, Fake("vllm", waits) as good:
        speech = engine_of(bad, good, calls=1).speak(FIVE, a_voice(), PARAMS)
        assert speech.complete and len(good.calls) == 5 and bad.calls
        (warning,) = speech.warnings
        assert warning.startswith(f"SGLang-Omni at {bad.address} ") and warning.endswith(
            ". The other servers took over its part."
        )
        assert speech.how == f"vLLM-Omni at {good.address} (5 chunks)"


def test_losing_all_servers_reports_every_reason():
    with (
        Fake("sglang", lambda number, body: refusal(401, "No.")) as one,
        Fake("vllm", lambda n, body: Reply(b"?")) as two,
    ):
        with pytest.raises(HiggsError, match="No server is left to use") as failed:
            engine_of(one, two, calls=1).speak(FIVE, a_voice(), PARAMS)
        assert "refused the key" in str(failed.value) and "instead of audio" in str(failed.value)


class TestBeforeItRuns:
    def test_an_unreachable_server_is_refused_before_the_run(self):
        with Fake() as gone:
            address = gone.address
        with pytest.raises(
            HiggsError,
            match=rf"The server cannot be used: {address} refused the connection\. Check that the server is running",
        ):
            RemoteEngine(ServerConfig(address)).speak(ONE)
        with Fake() as fake:
            speech = RemoteEngine(ServerConfig(f"{address}\n{fake.address}")).speak(ONE, a_voice(), PARAMS)
            assert any("refused the connection" in one and "is not used" in one for one in speech.warnings)

    @pytest.mark.parametrize(
        ("paths", "settings", "error"),
        [
            ({"/health": Reply(b'{"status": "starting"}', 503)}, {}, "is running but not ready"),
            ({"/v1/models": refusal(401, "Key?")}, {}, "refused the key: Key"),
            ({"/v1/models": [1]}, {}, "returned no list of models"),
            ({"/v1/models": Reply(b"<html>")}, {}, "returned no list of models"),
            ({}, {"model": "other"}, "has no model 'other'. Choose one of: higgs"),
        ],
    )
    def test_a_server_that_cannot_speak_is_refused_before_the_run(self, paths, settings, error):
        with Fake(**paths) as fake, pytest.raises(HiggsError, match=error):
            engine_of(fake, **settings).connect()

    def test_kinds_of_servers_are_recognised(self):
        def kind(fake):
            with fake:
                (server,) = engine_of(fake).connect().servers
                assert not fake.calls
                return server.kind.value

        speech = {"/v1/audio/speech": {}}
        assert kind(Fake("sglang")) == "SGLang-Omni" and kind(Fake("vllm")) == "vLLM-Omni"
        own = {**speech, "/v1/audio/speech/{request_id}": {}}
        assert kind(Fake("plain", **{"/openapi.json": {"paths": own}})) == "SGLang-Omni"
        assert kind(Fake("plain", **{"/openapi.json": {"paths": speech}})) == "unknown server"
        assert kind(Fake("plain")) == "unknown server"
        with (
            Fake("plain", **{"/openapi.json": {"paths": {}}}) as fake,
            pytest.raises(HiggsError, match="address of a speech server"),
        ):
            engine_of(fake).connect()

    def test_the_hosted_api_needs_a_key_and_is_not_probed(self, monkeypatch):
        with pytest.raises(HiggsError, match=rf"api.boson.ai needs a key\. Put it into the environment variable {KEY}"):
            RemoteEngine(ServerConfig("https://api.boson.ai")).connect()
        monkeypatch.setenv(KEY, "bai-x")
        found = RemoteEngine(ServerConfig("https://api.boson.ai")).connect()
        assert found.servers[0].model == "higgs-tts-3" and "ignores seed" in found.warnings[0]

    def test_each_key_goes_only_to_its_server(self, monkeypatch):
        monkeypatch.setenv("HIGGS_TTS_OTHER", "second")
        monkeypatch.setenv(KEY, "first")
        with Fake() as one, Fake() as two:
            config = ServerConfig(f"{one.address}\n{two.address} HIGGS_TTS_OTHER")
            RemoteEngine(config).speak(FIVE, a_voice(), PARAMS)
            assert (one.keys, two.keys) == ({"Bearer first"}, {"Bearer second"})
        with Fake() as fake:
            monkeypatch.delenv(KEY)
            engine_of(fake).speak(ONE, a_voice(), PARAMS)
            assert fake.keys == {None}

    def test_differing_models_and_unsupported_input_are_warnings(self):
        with Fake("sglang", model="a") as one, Fake("plain", model="b") as two:
            speech = engine_of(one, two).speak(f"{ONE} <|emotion:joy|>", a_voice(), PARAMS, scene="A kitchen.")
            told = "\n".join(speech.warnings)
            assert "different models (a, b)" in told and "Unknown tag <|emotion:joy|>" in told
            assert "does not use scene descriptions" in told and "may ignore seed" in told

    def test_voices_hold_either_codes_or_sound(self, written):
        codes = Voice(torch.zeros(50, 8, dtype=torch.int64), "One.")
        with Fake() as fake:
            with pytest.raises(
                HiggsError,
                match="The voice of Anna was made for a model on this machine, but a server needs the clip itself",
            ):
                engine_of(fake).speak_turns([Turn("Anna", ONE)], {"Anna": codes})
            assert not fake.calls
        local = Engine(EngineConfig(str(written["v3"]), device="cpu", context=512))
        with local, pytest.raises(HiggsError, match="made with a different model"):
            local.speak(ONE, a_voice())


@pytest.mark.parametrize("at", ["a call", "several calls"])
def test_cancel_closes_the_connections_at_once(at):
    wanted = 1 if at == "a call" else 5

    class Stop(BaseException):
        pass

    with Fake(reply=lambda number, body: Reply(hangs=True)) as fake:
        seen = 0

        def on_frame(done, expected):
            nonlocal seen
            while fake.hanging.acquire(blocking=False):
                seen += 1
            if seen == wanted:
                raise Stop

        engine = engine_of(fake)
        with pytest.raises(Stop):
            engine.speak(ONE if wanted == 1 else FIVE, a_voice(), PARAMS, listener=Listener(on_frame=on_frame))
        for _ in range(wanted):
            assert fake.left.acquire(timeout=30), "a connection is still open"
        fake.reply = lambda number, body: spoken(body)
        assert engine.speak(ONE, a_voice(), PARAMS).complete


def test_cancel_ends_the_search_for_servers():
    class Stop(BaseException):
        pass

    def stop(done, expected):
        raise Stop

    with Fake(**{"/health": Reply(hangs=True)}) as fake:
        with pytest.raises(Stop):
            engine_of(fake).speak(
                ONE, listener=Listener(on_frame=lambda done, expected: fake.hanging.acquire(timeout=30) and stop(0, 0))
            )
        assert fake.left.acquire(timeout=30)


def test_closed_connections_open_no_new_ones():
    with Fake() as fake:
        connections = Connections()
        (server,) = engine_of(fake).connect().servers
        connections.close()
        with pytest.raises(HiggsError, match="was not called: the run has ended"):
            connections.ask(server.address, "GET", "/health")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_speech_cut_by_the_server_is_a_warning(kind):
    def reply(number, body):
        wav = sound_of(body["input"], seconds=body["max_new_tokens"] / 25 if kind == "vllm" else 1.0)
        headers = {"X-Finish-Reason": "length"} if kind == "sglang" else {}
        return Reply(wav_file(wav), headers={"Content-Type": "audio/wav", **headers})

    params = SamplingParams(max_frames=40, retries=0)
    with Fake(kind, reply) as fake:
        speech = engine_of(fake).speak("This goes on for rather longer than it may, does it not?", a_voice(), params)
        assert not speech.complete and "frame limit" in speech.stopped
        assert any("of the text was not spoken" in warning for warning in speech.warnings)


@pytest.mark.parametrize(
    ("rate", "channels", "subtype"), [(44_100, 2, "FLOAT"), (16_000, 1, "PCM_16"), (48_000, 1, "PCM_24")]
)
def test_other_rates_and_formats_are_converted(rate, channels, subtype):
    tone = 0.4 * np.sin(2 * np.pi * 300 * np.arange(rate * 2) / rate).astype("float32")
    body = wav_file(np.stack([tone] * channels, 1), rate, subtype)
    with Fake(reply=lambda number, asked: Reply(body)) as fake:
        wav = engine_of(fake).speak(ONE, a_voice(), PARAMS).wav
    assert len(wav) == 48_000
    wanted = 0.4 * np.sin(2 * np.pi * 300 * np.arange(48_000) / 24_000)
    assert np.abs(wav.numpy() - wanted)[500:-500].max() < 0.01


def test_a_bad_take_is_spoken_again_with_another_seed():
    def reply(number, body):
        return Reply(wav_file(np.zeros(48_000, "float32"))) if number == 1 else spoken(body)

    with Fake(reply=reply) as fake:
        speech = engine_of(fake).speak(ONE, a_voice(), SamplingParams(seed=3))
        first, second = fake.calls
        assert first["input"] == second["input"] and first["seed"] == 3 != second["seed"]
        assert len(speech.spoken_again) == 1 and speech.wav.abs().max() > 0.2


def test_a_listener_hears_all_sound_in_order():
    heard = []
    with Fake() as fake:
        speech = engine_of(fake).speak(
            FIVE, None, PARAMS, listener=Listener(on_audio=heard.append, on_restart=lambda why: heard.clear())
        )
    assert len(heard) >= 5 and torch.cat(heard).equal(speech.wav)


def test_only_changed_turns_of_a_dialogue_are_spoken_again():
    turns = [Turn("Anna", "Did you hear that?"), Turn("Tom", "Hear what?"), Turn("Anna", "There it is again.")]
    voices = {"Anna": a_voice(), "Tom": a_voice("Tom")}
    with Fake() as fake:
        engine = engine_of(fake)
        first = engine.speak_turns(turns, voices, PARAMS)
        turns[1] = Turn("Tom", "What should I have heard?")
        again = engine.speak_turns(turns, voices, PARAMS)
        assert len(fake.calls) == 4 and again.reused == 2
        assert [turn.speaker for turn in again.turns] == ["Anna", "Tom", "Anna"]
        assert again.wav[: again.turns[0].stop].equal(first.wav[: first.turns[0].stop])
        fake.model = "another"  # started anew with another model: nothing of before counts
        engine.speak_turns(turns, voices, PARAMS)
        assert engine.speak_turns(turns, voices, PARAMS).reused == 3


def test_a_speaker_without_a_voice_keeps_its_generated_one():
    turns = [Turn("Anna", "This is a sentence that is long enough."), Turn("Anna", "Here."), Turn("Tom", "And there.")]
    with Fake() as fake:
        engine_of(fake).speak_turns(turns, {}, PARAMS)
        by_text = {call["input"]: call for call in fake.calls}
        assert "ref_audio" in by_text["Here."] and "ref_audio" not in by_text["And there."]


def test_cues_start_on_time_and_long_ones_are_spoken_faster():
    srt = "1\n00:00:00,500 --> 00:00:02,500\nDid you hear that?\n\n2\n00:00:03,000 --> 00:00:03,400\nI certainly did."
    with Fake() as fake:
        speech = speak_cues(engine_of(fake), read_cues(srt).cues, {"": a_voice()}, PARAMS, CueParams(stretch=1.0))
        assert [cue.start for cue in speech.cues] == [0.5, 3.0]
        assert "<|prosody:speed_fast|>I certainly did." in texts(fake)


def test_a_voice_of_the_server_speaks_cues_and_books(tmp_path):
    srt = "1\n00:00:00,000 --> 00:00:00,300\nDid you hear that?"
    book = read_book_text("# One\n\nFirst there is this.", "Book")
    with Fake() as fake:
        engine = engine_of(fake, voice="jake")
        speak_cues(engine, read_cues(srt).cues, {}, PARAMS)
        count = len(fake.calls)
        narrate(engine, book, tmp_path, params=PARAMS)
        assert count == 2 and len(fake.calls) > 3 and {call.get("voice") for call in fake.calls} == {"jake"}


def test_a_stopped_book_resumes(tmp_path):
    book = read_book_text("# One\n\nFirst there is this.\n\nThen there is that.\n\n# Two\n\nAt last it ends.", "Book")

    class Stop(BaseException):
        pass

    with Fake() as fake:
        whole = narrate(engine_of(fake), book, tmp_path / "whole", params=PARAMS)
        count = len(fake.calls)

        def stop(progress):
            if len(fake.calls) > count + 2:
                raise Stop

        with pytest.raises(Stop):
            narrate(engine_of(fake, calls=1), book, tmp_path / "parts", params=PARAMS, on_progress=stop)
        again = narrate(engine_of(fake), book, tmp_path / "parts", params=PARAMS)
        assert again.reused and not again.warnings
        for file in whole.files:
            assert (tmp_path / "parts" / file.name).read_bytes() == (tmp_path / "whole" / file.name).read_bytes()


def test_the_text_is_never_logged(caplog):
    caplog.set_level(logging.DEBUG)
    with Fake(reply=lambda number, body: refusal(503) if number == 1 else spoken(body)) as fake:
        engine_of(fake).speak(ONE, a_voice(), PARAMS)
    assert ONE not in caplog.text and "sentence" not in caplog.text


def test_importing_the_engine_imports_no_server_library():
    code = "import engine, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    command = [sys.executable, "-c", code, "aiohttp", "av", "ray", "transformers"]
    told = subprocess.run(command, cwd=EMBEDDED.parents[1], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
