"""The HTTP side: routes, OpenAI's error envelope, streams. Texts are not logged."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from aiohttp import web

from ..audio.mastering import AS_IS
from ..core.config import SAMPLE_RATE, CallLimits
from ..core.errors import HiggsError
from ..engines.remote import wire
from ..speech.result import SpeechResult
from ..voice.voice import Voice
from .access import CALL, DISCONNECTED, Handler, accounting
from .batch import MOST_VALUES, batch_body, read_batch, spoken, unspoken
from .bodies import MOST_BYTES, beside, check_head, most_text, parse_form, parse_json
from .calls import DEFAULT_VOICE, BadCall, Call, bounded, overloaded, read_call
from .chunks import ChunkCalls
from .clips import CallVoices
from .connections import SPARE, CallerConnections, Connection
from .errors import FAILURES, LOG, failure
from .hosts import HostNames, check_page
from .metrics import ServerMetrics
from .sound import FORMATS, encoded
from .speaker import SpeakerJob, SpeakerThread, SpeechJob
from .streams import EventStream, RawStream, answer_headers, finish_reason, send_whole
from .text_session import read_session
from .text_stream import TextStreams
from .timestamps import word_headers, word_times
from .unread import Said, UnreadSpeech, WirePart
from .voices import VoiceFolder

_ENDS_KEPT = 1024  # of streams, whose body cannot say how they ended
OWNER = "higgs-tts"  # the model's owner as listed; our own clients recognise the server by it
_KEPT_ALIVE = 150.0  # seconds of a connection between two calls; longer than a proxy keeps it
_Parsed = TypeVar("_Parsed")


class SpeechServer:
    """Serves one speaker over HTTP.

    model: its public name. hosts: names by which callers without the key may call it. loudness: of whole answers.
    """

    def __init__(
        self,
        speaker: SpeakerThread,
        voices: VoiceFolder,
        model: str,
        limits: CallLimits | None = None,
        key: str = "",
        hosts: HostNames | None = None,
        loudness: str = AS_IS,
    ):
        self._speaker, self._voices, self.model, self._engine = speaker, voices, model, speaker.engines[""]
        self._card = self._engine.planner.followed_card()
        self._call_voices, self._metrics = CallVoices(speaker, voices), ServerMetrics()
        self._stopping, self._loudness, self.calls = False, loudness, 0  # calls: not answered yet
        self._limits, self._key, self._hosts = limits or CallLimits(), key, hosts or HostNames()
        self.connections = CallerConnections(self._limits.max_calls + SPARE)
        most = self._limits.max_characters
        self._texts = TextStreams(
            self._say,
            self._voice_of,
            partial(read_session, most_characters=most, knows_tag=self._engine.planner.knows_tag),
            most,
            speaker.most_reference_frames,
            self._metrics.failed,
            self._word_times,
        )
        self._chunks = ChunkCalls(speaker, self._call_voices, most)
        self._ends: OrderedDict[str, str] = OrderedDict()  # of raw streams, by request id

    def stop(self) -> None:
        """Refuse new calls from now on. Open ones are answered."""
        self._stopping = True

    def app(self) -> web.Application:
        """Return the application. Run it with handler_cancellation, so that a caller's disconnect frees the row.

        Its connections must be those of `connections.listen`.
        """
        handling = {"auto_decompress": False, "logger": LOG, "keepalive_timeout": _KEPT_ALIVE}
        app = web.Application(
            middlewares=[accounting(self._metrics), self._answer_errors],
            client_max_size=MOST_BYTES,
            handler_args=handling,
        )
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._tell_metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/audio/speech", self._speech),
                web.post("/v1/audio/speech/batch", self._batch),
                web.get("/v1/audio/speech/stream", self._text_stream),
                web.get("/v1/audio/speech/{id}", self._end_of),
                web.post(wire.CHUNK, self._chunk),
                web.post(wire.VOICE, self._encode),
                web.get("/v1/audio/voices", self._list_voices),
                web.post("/v1/audio/voices", self._add_voice),
                web.delete("/v1/audio/voices/{name}", self._delete_voice),
            ]
        )
        app.on_shutdown.append(self._texts.close)
        return app

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with self.connections.of(request).request():
                self._check_caller(request)
                check_head(request)
                return await handler(request)
        except FAILURES as error:
            CALL.get().kind = failure(error).kind
            return failure(error).answer()

    def _check_caller(self, request: web.Request):
        """Check the key, or else, as pages in a browser have none, that no page is behind the call."""
        if self._key and self._has_key(request):
            return
        if self._key and request.path != "/health":
            raise BadCall("the key is missing or wrong. Send Authorization: Bearer KEY.", None, 401, "invalid_key")
        self._hosts.check(request.headers)
        if request.method != "GET" or "Upgrade" in request.headers:  # it changes or costs something
            check_page(request.headers)

    def _has_key(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given, key = (one.encode("utf-8", "surrogateescape") for one in (given, self._key))  # may be any bytes
        return hmac.compare_digest(given, key)

    async def _health(self, request: web.Request) -> web.Response:
        workers = await asyncio.to_thread(self._engine.workers)
        is_down = self._speaker.broken is not None or (
            workers and not any(one["state"] in ("running", "starting") for one in workers)
        )
        status = "unhealthy" if is_down else "stopping" if self._stopping else "healthy"
        may_see = workers and (not self._key or self._has_key(request))  # anybody may ask for the status
        about = {"status": status} | ({"workers": workers} if may_see else {})
        return web.json_response(about, status=200 if status == "healthy" else 503)

    async def _tell_metrics(self, request: web.Request) -> web.Response:
        running, waiting = self._speaker.rows
        now = {"calls_open": self.calls, "rows_running": running, "rows_waiting": waiting}
        text = self._metrics.text(self._speaker.changes, **now)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": OWNER}
        about = {name: getattr(self._card, name) for name in ("languages", "tags", "one_voice", "spell_out")}
        names = "", *self._speaker.adapters
        own = await asyncio.to_thread(lambda: [about | {"wire": self._chunks.about(name)} for name in names])
        listed = [model | {"id": self._called(name), "higgs_tts": one} for name, one in zip(names, own, strict=True)]
        listed[1:] = [one | {"parent": self.model} for one in listed[1:]]
        return web.json_response({"object": "list", "data": listed})

    async def _list_voices(self, request: web.Request) -> web.Response:
        names = dict.fromkeys([DEFAULT_VOICE, *await asyncio.to_thread(self._voices.names)])
        # Open WebUI reads id and name of each; the other servers' clients also take objects, and want the second list.
        return web.json_response({"voices": [{"id": name, "name": name} for name in names], "uploaded_voices": []})

    async def _add_voice(self, request: web.Request) -> web.Response:
        form = await self._body(request, lambda data: parse_form(data, request.headers.get("Content-Type", "")))
        if not {"name", "audio_sample"} <= form.keys():
            raise BadCall("send a form with name, audio_sample (a sound file) and, if possible, ref_text.")
        try:
            name, text = form["name"].decode(), form.get("ref_text", b"").decode()
        except UnicodeDecodeError:
            raise BadCall("name and ref_text must be UTF-8.") from None
        bounded("ref_text", text, self._limits.max_characters)
        with self._one_call():
            voice = await self._call_voices.made(form["audio_sample"], text, "audio_sample")
            name = await asyncio.to_thread(self._voices.add, name, voice)
        return web.json_response({"name": name, "seconds": voice.seconds, "warnings": voice.warnings})

    async def _delete_voice(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await asyncio.to_thread(self._voices.delete, name)
        return web.json_response({"name": name, "deleted": True})

    async def _end_of(self, request: web.Request) -> web.Response:
        if (end := self._ends.get(request.match_info["id"])) is None:
            raise BadCall("there is no such stream, or it has not ended yet.", "id", 404)
        return web.json_response({"id": request.match_info["id"], "finish_reason": end})

    async def _speech(self, request: web.Request) -> web.StreamResponse:
        connection, most = self.connections.of(request), most_text(self._limits.max_characters)
        call = await self._body(request, lambda data: self._read(parse_json(data)), most)
        with self._one_call():
            voice = await self._voice_of(call)
            call = replace(call, clip=None)
            connection.release()
            headers = answer_headers(self._called(self._adapter_of(call.model)), call.ignored)
            headers |= {"X-Voice-Warnings": " ".join(voice.warnings)} if voice and voice.warnings else {}
            if call.stream:
                return await self._stream(request, call, voice, headers)
            async with self._whole(connection, call, voice) as speech:
                body = await asyncio.to_thread(encoded, speech.wav, call.format, call.loudness or self._loudness)
                headers |= {"X-Finish-Reason": finish_reason(speech), "X-Check": speech.outcome}
                headers |= {"X-Loudness": call.loudness or self._loudness, "Content-Type": FORMATS[call.format]}
                headers |= word_headers(await self._word_times(call, speech)) if call.word_timestamps else {}
                connection.hold(len(body))
            del speech
            return await send_whole(request, body, headers)

    async def _chunk(self, request: web.Request) -> web.StreamResponse:
        connection = self.connections.of(request)
        order = await self._body(request, self._chunks.read, self._chunks.most_bytes)
        with self._one_call():
            adapter, unread = self._adapter_of(order.model), UnreadSpeech(connection)
            job = await self._chunks.job(order, adapter, unread)
            connection.release()
            parts = self._parts_of(unread, job, CALL.get().began)
            return await self._chunks.answer(request, self._called(adapter), unread, parts)

    async def _encode(self, request: web.Request) -> web.Response:
        data = await self.connections.of(request).body(request)
        with self._one_call():
            return web.Response(body=await self._chunks.encode(data), content_type=wire.MEDIA)

    async def _text_stream(self, request: web.Request) -> web.StreamResponse:
        with self._one_call():
            return await self._texts.handle(request, self.connections.of(request))

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        most = min(self._limits.max_items, self._limits.max_calls)
        calls = await self._body(
            request,
            lambda data: read_batch(parse_json(data, MOST_VALUES), most, self._read),
            most_text(self._limits.max_characters, most),
        )
        headers = answer_headers(
            self.model, {name for call in calls if isinstance(call, Call) for name in call.ignored}
        )
        with self._one_call(len(calls)):
            results = await asyncio.gather(*(self._item(request, call) for call in calls))
            body = await asyncio.to_thread(batch_body, headers["X-Request-Id"], results)
            del results
            return await send_whole(request, body, headers | {"Content-Type": "application/json; charset=utf-8"})

    async def _item(self, request: web.Request, call: Call | BadCall) -> dict:
        connection = self.connections.of(request)
        try:
            if isinstance(call, BadCall):
                raise call
            voice = await self._voice_of(call)
            async with self._whole(connection, call, voice) as speech:
                data = await asyncio.to_thread(encoded, speech.wav, call.format, call.loudness or self._loudness)
                connection.hold(len(data) * 4 // 3)  # as base64
                return spoken(call.format, speech, data)
        except FAILURES as error:
            self._metrics.failed(failure(error).kind)
            return unspoken(failure(error))

    async def _body(self, request: web.Request, parse: Callable[[bytes], _Parsed], most: int = MOST_BYTES) -> _Parsed:
        data = await self.connections.of(request).body(request, most)
        return await beside(len(data), parse, data)

    def _read(self, body: object) -> Call:
        return read_call(body, self._limits.max_characters, self._engine.planner.knows_tag)

    def _adapter_of(self, model: str) -> str:
        """Return the adapter that a model's name has, as in NAME:ADAPTER. Raises BadCall for an unknown one of ours.

        Any other name is the model without an adapter, since programs send those of OpenAI.
        """
        name, _, adapter = model.rpartition(":")
        if adapter in self._speaker.adapters:
            return adapter
        if name == self.model and self._speaker.adapters:
            known = ", ".join(map(self._called, ("", *self._speaker.adapters)))
            raise BadCall(f"there is no model {model[:80]!r}. Known models: {known}.", "model", 404, "model_not_found")
        return ""

    def _called(self, adapter: str) -> str:
        return f"{self.model}:{adapter}" if adapter else self.model

    async def _voice_of(self, call: Call) -> Voice | None:
        self._adapter_of(call.model)
        return await self._call_voices.of(call)

    async def _word_times(self, call: Call, speech: SpeechResult) -> list[dict] | None:
        return await word_times(self._speaker, self._adapter_of(call.model), speech)

    @contextlib.asynccontextmanager
    async def _whole(
        self, connection: Connection, call: Call, voice: Voice | None
    ) -> AsyncGenerator[SpeechResult, None]:
        """Yield the speech, whose sound the connection holds until the end."""
        async with contextlib.aclosing(self._say(connection, call, voice, False, CALL.get().began)) as speech:
            result = await anext(speech)
            assert isinstance(result, SpeechResult)
            yield result

    async def _stream(
        self, request: web.Request, call: Call, voice: Voice | None, headers: dict[str, str]
    ) -> web.StreamResponse:
        stream = (EventStream if call.stream == "sse" else RawStream)(request, headers, call.format)
        try:
            connection, began = self.connections.of(request), CALL.get().began
            async with contextlib.aclosing(self._say(connection, call, voice, True, began)) as speech:
                async for part in speech:
                    if isinstance(part, SpeechResult):
                        self._keep_end(headers, finish_reason(part))
                        await stream.end(part)
                    else:
                        await stream.hear(part)
        except (ConnectionResetError, *FAILURES) as error:  # a reset: disconnected, and the task is not cancelled yet
            is_gone = isinstance(error, ConnectionResetError)
            if not (is_gone or stream.has_begun):
                raise
            CALL.get().kind = DISCONNECTED if is_gone else failure(error).kind
            self._keep_end(headers, "error")
            if not is_gone:
                await stream.fail(str(error))
        return stream.answer

    def _keep_end(self, headers: Mapping[str, str], reason: str):
        self._ends[headers["X-Request-Id"]] = reason
        while len(self._ends) > _ENDS_KEPT:
            self._ends.popitem(last=False)

    async def _say(
        self, connection: Connection, call: Call, voice: Voice | None, listens: bool, began: float | None = None
    ) -> AsyncGenerator[Said, None]:
        """Yield sound as it comes, if `listens`, and then the result. Closing the generator drops the job.

        connection: holds what was spoken, until the next is asked for. began: the loop's time from which first sound
        and the limit of seconds count, if not from now.
        """
        loop = asyncio.get_running_loop()
        began = loop.time() if began is None else began
        voices, unread = {} if voice is None else {"": voice}, UnreadSpeech(connection)
        hear = unread.hear if listens else None
        adapter = self._adapter_of(call.model)
        job = SpeechJob(call.text, unread.tell, voices, call.params, call.scene, hear, call.index, adapter)
        samples = 0
        async with contextlib.aclosing(self._parts_of(unread, job, began)) as spoken:
            async for part in spoken:
                assert not isinstance(part, WirePart)
                if isinstance(part, SpeechResult):
                    self._metrics.spoke(0.0 if listens else part.seconds)
                else:
                    if not samples:
                        self._metrics.first_sound(loop.time() - began)
                    samples += len(part)
                    self._metrics.spoke(len(part) / SAMPLE_RATE)
                yield part

    async def _parts_of(
        self, unread: UnreadSpeech, job: SpeakerJob, began: float
    ) -> AsyncGenerator[Said | WirePart, None]:
        """Speak a job, and yield what it tells until the last. Closing the generator drops the job."""
        loop, limit = asyncio.get_running_loop(), self._limits.max_seconds
        late = BadCall(f"the call took longer than this server's limit of {limit:g} s.", None, 504, "time_limit")
        self._speaker.speak(job)

        def end_late():
            self._speaker.drop(job)  # at once, though the caller may still be reading what was spoken before
            unread.put(late)

        timer = loop.call_at(began + limit, end_late) if limit else None
        try:
            while True:
                part = await unread.get()
                if isinstance(part, BaseException):
                    raise part if isinstance(part, FAILURES) else HiggsError(str(part))
                if isinstance(part, WirePart):
                    self._metrics.spoke(part.samples / SAMPLE_RATE)
                yield part
                if not isinstance(part, torch.Tensor) and getattr(part, "is_last", True):
                    return
        finally:
            unread.close()
            if timer is not None:
                timer.cancel()
            self._speaker.drop(job)

    @contextlib.contextmanager
    def _one_call(self, count: int = 1):
        if self._stopping:
            raise BadCall("the server is stopping. Try again soon.", None, 503, "stopping")
        if self.calls + count > self._limits.max_calls:
            raise overloaded(self._metrics.seconds_to_answer(self.calls))
        self.calls += count
        try:
            yield
        finally:
            self.calls -= count
