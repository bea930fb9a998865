"""HTTP routes for the pack's pages: sounds, voices, hints on texts. Never touches the device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from aiohttp import web
from server import PromptServer

from ...engine import MAX_PAGE_BODY, MAX_SHEET, SAMPLE_RATE, ClipParams, HiggsError, with_seed
from . import clip_sounds, events, voice_sounds, written_text

WAIT = 5.0  # seconds that a long poll stays open
MOST_SAMPLES = 20 * SAMPLE_RATE  # per response
_MOST_SETTING = 1e6  # limit for a numeric setting from a page; each setting has a narrower range of its own


def register() -> None:
    """Add the routes to ComfyUI's. Call once, before the server starts."""
    table = PromptServer.instance.routes
    table.post("/higgs_tts/listen")(_sent(listen))
    table.get("/higgs_tts/runs")(runs)
    table.get("/higgs_tts/runs/{run}")(news)
    table.get("/higgs_tts/runs/{run}/samples")(samples)
    table.get("/higgs_tts/runs/{run}/file")(file)
    table.get("/higgs_tts/voices")(voices)
    table.get("/higgs_tts/voice")(voice)
    table.get("/higgs_tts/clip")(clip)
    table.get("/higgs_tts/clip/sound")(clip_sound)
    table.post("/higgs_tts/clip/checks")(_sent(clip_checks))
    table.post("/higgs_tts/clip/save")(_sent(save_clip))
    table.get("/higgs_tts/tags")(tags)
    table.post("/higgs_tts/text")(_sent(text))
    table.post("/higgs_tts/lines")(_sent(lines))


async def listen(asked: dict) -> web.Response:
    """Set whether a page plays while a node speaks."""
    client, on = asked.get("client"), asked.get("on")
    if not isinstance(client, str) or not isinstance(on, bool):
        return _refuse("client must be the page's id, and on must be true or false.")
    events.listen(client, on)
    return web.json_response({})


async def runs(request: web.Request) -> web.Response:
    """Return the runs that a page can play, given its open workflow."""
    told = events.runs_of(request.query.get("client", ""), request.query.get("workflow"))
    return web.json_response([run.about() for run in told])


async def news(request: web.Request) -> web.Response:
    """Return a run's state at once, or when it is no longer `version`."""
    run = events.run_of(request.match_info["run"])
    if run is None:
        return _gone()
    try:
        version = _number(request, "version", least=-1)  # no run has this version
        known = [_number(request, name) for name in ("revision", "outline", "edition", "words")]
    except ValueError as error:
        return _refuse(str(error))
    return web.json_response(await run.told(version, WAIT, *known))


async def samples(request: web.Request) -> web.Response:
    """Return 16-bit little-endian samples start..stop, as far as they exist. 204 if the sound has changed since."""
    run = events.run_of(request.match_info["run"])
    if run is None:
        return _gone()
    try:
        revision, start, stop = (_number(request, name) for name in ("revision", "start", "stop"))
    except ValueError as error:
        return _refuse(str(error))
    stop = min(stop, start + MOST_SAMPLES)
    data = await asyncio.to_thread(run.sound.read, revision, start, stop)
    if data is None:
        return web.Response(status=204)  # the page then asks for the state; browsers log a 409 as an error
    return web.Response(body=data, content_type="application/octet-stream")


async def file(request: web.Request) -> web.StreamResponse:
    """Return a run's result: the file that its node saved, or a WAV."""
    run = events.run_of(request.match_info["run"])
    if run is None or run.sound.file is None or not await asyncio.to_thread(run.sound.file[0].is_file):
        return _gone()
    path, name = run.sound.file
    return web.FileResponse(path, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"})


async def voices(request: web.Request) -> web.Response:
    """Return details of each voice, for the chosen model."""
    return web.json_response(await asyncio.to_thread(voice_sounds.listed, request.query.get("model", "")))


async def voice(request: web.Request) -> web.Response:
    """Return a voice as a sound file."""
    if not request.query.get("name"):
        return _refuse("Enter the name of a voice.")
    try:
        sound, kind = await asyncio.to_thread(voice_sounds.sound_of, request.query["name"])
    except HiggsError as error:
        return _refuse(str(error), 404)
    return web.Response(body=sound, content_type=kind)


async def clip(request: web.Request) -> web.Response:
    """Return the outline of a recording in ComfyUI's input folder."""
    try:
        return web.json_response(await asyncio.to_thread(clip_sounds.outline_of, request.query.get("name", "")))
    except HiggsError as error:
        return _refuse(str(error))


async def clip_sound(request: web.Request) -> web.Response:
    """Return a part of a recording as a sound file."""
    try:
        part = ClipParams(*(float(request.query.get(name, "0")) for name in ("start", "length")))
        sound = await asyncio.to_thread(clip_sounds.sound_of, request.query.get("name", ""), part)
    except ValueError:
        return _refuse("start and length must be numbers of seconds.")
    except HiggsError as error:
        return _refuse(str(error))
    return web.Response(body=sound, content_type="audio/wav")


async def clip_checks(asked: dict) -> web.Response:
    """Return what a part of a recording is good for."""
    name, transcript = (_text(asked, key) for key in ("clip", "transcript"))
    return web.json_response(await asyncio.to_thread(clip_sounds.checked, name, _part(asked), transcript))


async def save_clip(asked: dict) -> web.Response:
    """Save a part of a recording as a voice, and return its name."""
    name, transcript, voice = (_text(asked, key) for key in ("clip", "transcript", "name"))
    saved = await asyncio.to_thread(clip_sounds.save, name, _part(asked), transcript, voice)
    return web.json_response({"name": saved})


async def tags(request: web.Request) -> web.Response:
    """Return the chosen model's tags by group."""
    return web.json_response(await asyncio.to_thread(written_text.tags_for, request.query.get("model", "")))


async def text(asked: dict) -> web.Response:
    """Return hints on a text while it is written."""
    kind, written, model = (asked.get(name, "") for name in ("kind", "text", "model"))
    settings = asked.get("settings", {})
    if not all(isinstance(value, str) for value in (kind, written, model)):
        return _refuse("kind, text and model must be strings.")
    if not isinstance(settings, dict) or not all(map(_is_setting, settings.values())):
        return _refuse(f"settings must be numbers, keyed by name, of at most {_MOST_SETTING:,.0f}.")
    return web.json_response(await asyncio.to_thread(written_text.look, kind, written, model, settings))


async def lines(asked: dict) -> web.Response:
    """Return a sheet of lines with one row's seed set."""
    sheet, row, seed = asked.get("lines"), asked.get("id"), asked.get("seed")
    if not (isinstance(sheet, str) and isinstance(row, str) and isinstance(seed, int)) or isinstance(seed, bool):
        return _refuse("lines and id must be strings, and seed a whole number.")
    if len(sheet) > MAX_SHEET:
        return _refuse(
            f"Not kept: this page does not edit sheets of more than {MAX_SHEET:,} characters. Enter the seed yourself."
        )
    try:
        return web.json_response({"lines": await asyncio.to_thread(with_seed, sheet, row, seed)})
    except HiggsError as error:
        return _refuse(f"Not kept: {error}")


def _sent(answer: Callable[[dict], Awaitable[web.Response]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Turn a function of the request's JSON object into a route."""

    async def handler(request: web.Request) -> web.Response:
        try:
            return await answer(await _body(request))
        except HiggsError as error:
            return _refuse(str(error))

    return handler


async def _body(request: web.Request) -> dict:
    """Return the request's JSON object, read as UTF-8 whatever the headers say. Raises HiggsError for anything else."""
    data = bytearray()
    try:
        async for part in request.content.iter_chunked(1 << 16):
            data += part
            if len(data) > MAX_PAGE_BODY:
                raise HiggsError(f"The request is longer than {MAX_PAGE_BODY:,} bytes. Send a shorter text.")
        sent = json.loads(data)
    except (ValueError, RecursionError, web.RequestPayloadError) as error:
        reason = " ".join(str(error).split())[:80]
        raise HiggsError(f"The request cannot be read ({reason}). Send a JSON object.") from error
    if not isinstance(sent, dict):
        raise HiggsError("The request is not a JSON object. Send one.")
    return sent


def _text(asked: dict, name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise HiggsError(f"{name} must be a string.")
    return value


def _part(asked: dict) -> ClipParams:
    start, length = (asked.get(name, 0) for name in ("start", "length"))
    if not (_is_setting(start) and _is_setting(length)):
        raise HiggsError("start and length must be numbers of seconds.")
    return ClipParams(start, length)


def _is_setting(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST_SETTING


def _number(request: web.Request, name: str, least: int = 0) -> int:
    text = request.query.get(name, "0")
    if not (text.isascii() and text.lstrip("-").isdigit() and len(text) < 16):
        raise ValueError(f"{name} is {text[:40]!r}. It must be a whole number.")
    return max(least, int(text))


def _gone() -> web.Response:
    return _refuse("This sound is no longer available. Run the node again.", 404)


def _refuse(why: str, status: int = 400) -> web.Response:
    return web.json_response({"error": why}, status=status)
