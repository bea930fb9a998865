"""Streamed speech: the `openai` package's standard snippets, and broken streams."""

import asyncio
import io
import itertools
import threading

import numpy as np
import pytest
from higgs_tts.engine import Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.audio import encoded

web = pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
openai = pytest.importorskip("openai", reason="the openai package is not installed")

from higgs_tts.engine.serve import sound  # noqa: E402
from higgs_tts.tests.speech_servers import ask, error_of, running  # noqa: E402

TEXT = "One apple lies on the table, and another one lies below it."
FRAMES = 60
ASKED = {"model": "tts-1", "voice": "coral", "input": TEXT}
EXTRA = {"seed": 3, "max_new_tokens": FRAMES, "retries": 0}
SAMPLE = 2  # bytes
BROKEN = "(?i)connection|peer closed"  # by the client's HTTP library, or the client itself


@pytest.fixture(scope="module")
def config(written):
    """The tiny checkpoint, which speaks until it is cut off."""
    return EngineConfig(str(written["v3"]), device="cpu", context=1024)


@pytest.fixture(scope="module")
def port(config):
    with Engine(config) as engine, running(engine) as (port, _):
        yield port


@pytest.fixture(scope="module")
def alone(config):
    """An engine's own speech, as 16-bit samples."""
    with Engine(config) as engine:
        speech = engine.speak(TEXT, params=SamplingParams(seed=3, max_frames=FRAMES, retries=0))
    assert speech.frames == FRAMES
    return (speech.wav.clamp(-1, 1) * 32767).round().numpy().astype(int)


@pytest.fixture
def gate(before_steps):
    """gate(steps): the model stops after so many steps until the returned event is set, then `go_on`."""

    def begin(steps, go_on=lambda backend: None):
        event, count = threading.Event(), itertools.count()

        def hold(backend):
            if next(count) >= steps:
                if not event.wait(600):
                    raise HiggsError("Nothing was heard before the gate.")
                go_on(backend)

        before_steps(hold)
        return event

    return begin


@pytest.fixture
def half(gate, alone):
    """The gate in the middle of the speech: a caller that gets no sound before it would wait forever."""
    return gate(len(alone) // 960 // 2)


@pytest.fixture
def client(port):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)


def samples(data, kind):
    """Return 16-bit samples at 24 kHz."""
    if kind == "pcm":
        return np.frombuffer(data, "<i2").astype(int)
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler("s16", "mono", 24_000)
        frames = [part for frame in file.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(int)


def assert_spoken(data, kind, alone):
    heard = samples(data, kind)
    if kind in ("pcm", "wav", "flac"):
        assert len(heard) == len(alone) and np.abs(heard - alone).max() <= 1
    else:
        assert abs(len(heard) - len(alone)) < 24_000 // 8 and np.abs(heard).max() > 1000


class TestStandardSnippets:
    @pytest.mark.parametrize("kind", ["pcm", "wav", "mp3", "opus", "flac"])
    def test_a_plain_call_returns_the_sound(self, client, alone, kind, tmp_path):
        response = client.audio.speech.create(**ASKED, response_format=kind, extra_body=EXTRA)
        response.write_to_file(tmp_path / "speech")
        assert_spoken((tmp_path / "speech").read_bytes(), kind, alone)

    @pytest.mark.parametrize("kind", ["pcm", "wav", "mp3", "opus", "flac"])
    def test_streaming_to_a_file_begins_before_half_is_spoken(self, client, alone, half, kind, tmp_path):
        with client.audio.speech.with_streaming_response.create(
            **ASKED, response_format=kind, extra_body=EXTRA
        ) as response:
            half.set()
            response.stream_to_file(tmp_path / "speech")
        assert_spoken((tmp_path / "speech").read_bytes(), kind, alone)

    @pytest.mark.parametrize("kind", ["pcm", "wav"])
    def test_streaming_to_a_player_begins_before_half_is_spoken(self, client, alone, half, kind):
        with client.audio.speech.with_streaming_response.create(
            **ASKED, response_format=kind, extra_body=EXTRA
        ) as response:
            chunks = response.iter_bytes(chunk_size=1024)
            heard = [next(chunks)]
            half.set()
            heard += chunks
        assert len(heard[0]) == 1024
        assert_spoken(b"".join(heard), kind, alone)

    def test_streaming_to_a_player_works_asynchronously(self, port, alone, half):
        async def listen():
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)
            async with client.audio.speech.with_streaming_response.create(
                **ASKED, instructions="Cheerfully.", response_format="pcm", extra_body=EXTRA
            ) as response:
                heard = []
                async for chunk in response.iter_bytes(chunk_size=1024):
                    half.set()
                    heard.append(chunk)
            await client.close()
            return b"".join(heard)

        assert_spoken(asyncio.run(listen()), "pcm", alone)

    def test_events_carry_any_format(self, client, alone, half):
        with client.audio.speech.with_streaming_response.create(
            **ASKED, response_format="mp3", stream_format="sse", extra_body=EXTRA
        ) as response:
            half.set()
            events = "".join(response.iter_text())
        assert events.count("speech.audio.delta") > 2 and events.count("event: speech.audio.done") == 1

    def test_stream_false_waits_for_the_whole_sound(self, client, alone):
        extra = {**EXTRA, "stream": False}
        response = client.audio.speech.with_raw_response.create(**ASKED, response_format="wav", extra_body=extra)
        assert int(response.headers["content-length"]) == len(response.content) == 44 + SAMPLE * len(alone)
        assert response.headers["x-finish-reason"] in ("stop", "length")


def test_players_can_read_a_wav_of_unknown_length(port, alone):
    soundfile, wave = pytest.importorskip("soundfile"), pytest.importorskip("wave")
    data = ask(port, body={**ASKED, **EXTRA, "response_format": "wav"})[2]
    assert data[4:8] == data[40:44] == b"\xff" * 4
    heard, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == 24_000 and np.abs(heard.astype(int) - alone).max() <= 1
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.readframes(len(alone) + 1) == data[44:]


def test_mp3_is_sent_whole_without_pyav(port, alone, monkeypatch):
    def missing(module, name):
        if module == "av":
            raise HiggsError("av has no usable open here.")
        return real(module, name)

    real = sound.import_optional
    monkeypatch.setattr(sound, "import_optional", missing)
    monkeypatch.setattr(encoded, "import_optional", missing)
    status, told, data = ask(port, body={**ASKED, **EXTRA, "response_format": "mp3"})
    assert status == 200 and told["content-type"] == "audio/mpeg"
    assert_spoken(data, "mp3", alone)


def test_a_long_silence_is_written_in_parts(port, monkeypatch):
    written, write = [], web.StreamResponse.write

    async def counted(self, data):
        written.append(len(data))
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    body = {
        **ASKED,
        **EXTRA,
        "input": "One apple. [pause 20] One apple.",
        "max_new_tokens": 10,
        "response_format": "pcm",
    }
    data = ask(port, body=body)[2]
    assert len(data) == sum(written) > 20 * 24_000 * SAMPLE and max(written) <= 24_000 * SAMPLE


class TestFailing:
    def fail(self, runner):
        raise HiggsError("The model produced values that are not numbers.")

    @pytest.mark.parametrize("kind", ["pcm", "wav", "mp3", "opus", "flac"])
    def test_a_failure_before_the_first_sample_is_an_error(self, port, gate, kind):
        gate(0, self.fail).set()
        answer = ask(port, body={**ASKED, **EXTRA, "response_format": kind})
        assert answer[0] == 500 and "not numbers" in error_of(answer)["message"]
        assert answer[1]["content-type"].startswith("application/json")

    @pytest.mark.parametrize("kind", ["pcm", "wav", "mp3", "opus", "flac"])
    def test_a_failure_after_the_first_sample_breaks_the_stream(self, client, alone, gate, kind):
        heard = gate(len(alone) // 960 // 2, self.fail)
        with (
            pytest.raises(Exception, match=BROKEN),
            client.audio.speech.with_streaming_response.create(
                **ASKED, response_format=kind, extra_body=EXTRA
            ) as response,
        ):
            chunks = response.iter_bytes()
            next(chunks)
            heard.set()
            list(chunks)

    def test_a_failure_during_a_plain_call_breaks_the_reply(self, client, alone, gate):
        gate(len(alone) // 960 // 2, self.fail).set()
        with pytest.raises(Exception, match=BROKEN):
            client.audio.speech.create(**ASKED, response_format="wav", extra_body=EXTRA)

    def test_a_failure_during_events_is_an_error_event(self, client, alone, gate):
        gate(len(alone) // 960 // 2, self.fail).set()
        with client.audio.speech.with_streaming_response.create(
            **ASKED, response_format="pcm", stream_format="sse", extra_body=EXTRA
        ) as response:
            events = "".join(response.iter_text())
        assert "event: error" in events and "not numbers" in events and "speech.audio.done" not in events
