"""Calls without a key: pages of other sites are refused, and so are names that were rebound to this machine."""

import json
import socket

import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.serve.calls import BadCall
from higgs_tts.engine.serve.hosts import HostNames, check_page
from higgs_tts.tests.speech_servers import ask, error_of, running

SHORT = {"input": "One apple.", "max_new_tokens": 5, "retries": 0, "response_format": "pcm"}
PATH, VOICES = "/v1/audio/speech/stream", "/v1/audio/voices"
UPGRADE = ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
FORM = "Content-Type: multipart/form-data; boundary=edge"
OWN = socket.gethostname()
LOCAL = ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1", "127.0.0.1:8000", "127.5.6.7", "[::1]:8000"]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evil.example@localhost",
    "",
    "[",
    "[::1",
    "a:b",
]
PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://[::1"},
    {"Origin": "http://127.0.0.1:9"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
]


def accepts(host, *server):
    try:
        HostNames(*server).check({"Host": host})
    except BadCall as error:
        assert (error.status, error.code, error.param) == (403, "unknown_host", "Host") and len(str(error)) < 300
        return False
    return True


@pytest.mark.parametrize("server", ["127.0.0.1", "::1", "localhost"])
def test_on_a_loopback_address_only_loopback_names_are_accepted(server):
    assert [host for host in LOCAL if not accepts(host, server)] == []
    assert [host for host in [*FOREIGN, "192.168.1.5:8000", "0.0.0.0", OWN] if accepts(host, server)] == []
    assert accepts("speech.example.org:8000", server, ["Speech.example.org"]) and not accepts("example.org", server)
    HostNames(server).check({})


def test_elsewhere_addresses_and_this_machine_s_names_are_accepted():
    hosts = [*LOCAL, "192.168.1.5:8000", "[fd00::5]", OWN, f"{OWN}.local:8000", "nas.home"]
    assert [host for host in hosts if not accepts(host, "0.0.0.0", ["nas.home"])] == []
    assert [host for host in FOREIGN if accepts(host, "0.0.0.0", ["nas.home"])] == []


def test_pages_of_other_sites_are_told_apart():
    for page in PAGES:
        with pytest.raises(BadCall, match="pages of other sites"):
            check_page({"Host": "127.0.0.1", **page})
    for page in ({}, {"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        check_page({"Host": "127.0.0.1", **page})


def test_pages_can_change_nothing_and_cost_nothing(tmp_path):
    def lines(page):
        return [f"{name}: {value}" for name, value in page.items()]

    calls = (
        ("POST", "/v1/audio/speech", SHORT, []),
        ("POST", "/v1/audio/speech/batch", {"items": [SHORT]}, []),
        ("POST", VOICES, b"--edge--", [FORM]),
        ("DELETE", f"{VOICES}/amber", None, []),
        ("GET", PATH, None, [*UPGRADE, "Connection: Upgrade"]),
    )
    rebound = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine:
        with running(engine, tmp_path) as (port, _):
            for method, path, body, headers in calls:
                for page in PAGES:
                    answer = ask(port, method, path, body, [*headers, *lines(page)])
                    assert answer[0] == 403 and error_of(answer)["code"] == "foreign_origin", (path, page)
                assert error_of(ask(port, method, path, body, [*headers, *lines(rebound)]))["code"] == "unknown_host"
            for path in ("/health", "/metrics", "/v1/models", VOICES):
                assert ask(port, "GET", path)[0] == 200
                assert ask(port, "GET", path, headers=lines(rebound))[0] == 403
            assert ask(port, body=SHORT, headers=["Origin: http://127.0.0.1"])[0] == 200
        with running(engine, tmp_path, key="k") as (port, _):  # no page has it
            key = "Authorization: Bearer k"
            assert (
                ask(port, body=SHORT, headers=[key, "Host: speech.example.org", "Origin: http://a.example"])[0] == 200
            )
            assert ask(port, body=SHORT, headers=lines(rebound))[0] == 401
            assert json.loads(ask(port, "GET", "/health")[2]) == {"status": "healthy"}
