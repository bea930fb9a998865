"""Bodies of the programs in docs/server.md, as their sources send them: each is answered with sound."""

import io
import json
import pathlib

import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")

from higgs_tts.tests.speech_servers import ask, running  # noqa: E402

CLIENTS = json.loads((pathlib.Path(__file__).parent / "data" / "clients.json").read_text(encoding="utf-8"))
CALLS = [(name, number) for name, client in CLIENTS.items() for number in range(len(client["calls"]))]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "server.md"
MEDIA = {"mp3": ("audio/mpeg", "MP3"), "wav": ("audio/wav", "WAV")}


@pytest.fixture(scope="module")
def port():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine, running(engine) as (port, _):
        yield port


@pytest.mark.parametrize(("name", "number"), CALLS)
def test_each_client_s_call_is_answered_with_sound(port, name, number):
    call = CLIENTS[name]["calls"][number]
    status, headers, data = ask(port, body=call["body"] | {"input": "Hello."}, headers=CLIENTS[name]["headers"])
    media, kind = MEDIA[call["sound"]]
    assert status == 200 and headers["content-type"] == media
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert file.format == kind and file.samplerate == 24_000
        samples = file.read()
    assert 0.4 < len(samples) / 24_000 < 15 and abs(samples).max() > 0.05


@pytest.mark.parametrize("name", CLIENTS)
def test_the_server_page_has_a_recipe_for_each_client(name):
    assert name.split(",")[0].removesuffix(" package") in PAGE.read_text(encoding="utf-8")
