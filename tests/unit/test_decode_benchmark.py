"""The results of benchmarks/decode.py: partial runs join, failures are reported, lengths are true."""

import importlib
import json
import pathlib
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
CARD = {"gpu": "a card", "driver": "1", "torch": "2", "date": "today"}


@pytest.fixture
def decode(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("decode")
    monkeypatch.setattr(module, "card", lambda: dict(CARD))
    yield module
    for name in ("decode", "speaking", "agreement", "common"):
        sys.modules.pop(name)


def row(who, ms, batch=1, context=500, slots=1024, floor=1.0, family="v3"):
    named = {"who": who, "family": family, "dtype": "bfloat16", "batch": batch, "context": context, "slots": slots}
    speed = {"frames_per_s": 1000 * batch / ms, "audio_s_per_s": 40 * batch / ms, "percent_of_floor": 100 * floor / ms}
    return named | speed | {"ms_per_step": ms, "floor_ms": floor}


def test_a_later_part_replaces_only_its_own_rows(decode, tmp_path):
    result = decode.earlier(tmp_path / "none")
    for ms in (3.0, 2.0):
        decode.put(result, row("ours", ms))
    decode.put(result, row("ours", 2.1, slots=8192))
    path = tmp_path / "decode.json"
    path.write_text(json.dumps(result | {"date": "yesterday", "first_sound_ms": {"clone": 50}}))
    again = decode.earlier(path)
    decode.put(again, row("torch ops", 5.0))
    assert [one["ms_per_step"] for one in again["rows"]] == [2.0, 2.1, 5.0]
    assert again["first_sound_ms"] == {"clone": 50} and again["date"] == "today"


def test_results_of_another_card_are_not_resumed(decode, tmp_path):
    path = tmp_path / "decode.json"
    path.write_text(
        json.dumps(CARD | {"gpu": "another card", "rows": [row("ours", 2.0)], "length": [], "read_tb_s": 1})
    )
    assert decode.earlier(path)["rows"] == []


def test_a_failing_peer_becomes_a_row_with_its_error(decode):
    failed = decode.peer_row("them", "v3", 1.5, {"crashes": 1, "exit": 1, "error": ["ImportError: no such thing"]})
    assert failed["ms_per_step"] is None and "no such thing" in failed["error"] and failed["floor_ms"] == 1.5
    late = decode.peer_row("them", "v3", 1.5, {"crashes": 1, "exit": None, "error": ["did not finish in 200 s"]})
    assert "did not finish" in late["error"]
    sound = decode.peer_row("them", "v3", 1.5, {"crashes": 0, "ms_per_step": 6.0, "transformers": "5"})
    assert sound["percent_of_floor"] == 25 and sound["how"] == "transformers 5"


def test_ratios_compare_like_with_like(decode):
    rows = [
        row("ours", 2.0),
        row("ours", 2.2, slots=8192),
        row("ours", 2.1, context=100, slots=8192, floor=1.0),
        row("ours", 2.4, context=2000, slots=8192, floor=1.3),
        row("ours", 4.0, batch=32),
        row("torch ops", 5.0),
        row(decode.PEERS["eager"]["v3"], 60.0, slots=None),
        row(decode.PEERS["compiled"]["v3"], 6.0) | {"ms_per_step": None},
    ]
    result = CARD | {"read_tb_s": 4.0, "rows": rows, "first_sound_ms": {}, "length": [{"minutes": 10, "seconds": 20}]}
    said = decode.ratios(result)
    v3 = said["v3"]
    assert (v3["torch_ops_times_ours"], v3["eager_times_ours"], v3["compiled_times_ours"]) == (2.5, 30.0, None)
    assert (v3["context_2000_to_100"], v3["cache_8192_to_1024"]) == (1.0, 1.1)
    assert v3["audio_s_per_s"] == {"32": 320.0} and "v2" not in said
    assert said["length_times_real_time"] == {"10": 30.0}


@pytest.mark.parametrize("chunks", [2, 20, 120])
def test_a_narration_has_the_requested_number_of_chunks(decode, chunks):
    from higgs_tts.engine.prompt.chunking import split_text

    speaking = sys.modules["speaking"]
    assert len(split_text(speaking.narration(chunks), speaking.CHUNK_SECONDS)) == chunks


@pytest.mark.parametrize("hollow", [False, True])
def test_agreement_detects_bf16_and_accepts_fp32(decode, written, hollow):
    compare = sys.modules["agreement"].compare
    rounded = compare("tiny", str(written["v2"]), hollow, device="cpu")
    assert 0 < rounded["worst_relative_error"] < 0.1 and 80 < rounded["codes_alike_percent"] < 100
    assert rounded["rows_alike_at_first"] < rounded["rows"] == rounded["steps"]
    exact = compare("tiny", str(written["v2"]), hollow, device="cpu", dtypes=("fp32", "fp32"))
    assert (exact["worst_relative_error"], exact["codes_alike_percent"]) == (0, 100)
    assert exact["rows_alike_at_first"] == exact["rows"]
