"""The reference endpoint's server: paths, keys, faults, and what is written when."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import msgspec

from probes.reference import answers
from probes.reference.answers import GENERATIONS, LOOKUPS, RefusedError, Reply, Script
from probes.reference.behavior import Behavior, Fault, cut
from probes.reference.pacer import Pacer, Play
from probes.reference.wire import LAST_CHUNK, Connection, Request, chunk, head

_JSON = "application/json"
_EVENTS = "text/event-stream; charset=utf-8"
_HOST = "127.0.0.1"
_BACKLOG = 1024
_TRANSCRIPTIONS = "/v1/audio/transcriptions"
_API = frozenset({*GENERATIONS, *LOOKUPS, _TRANSCRIPTIONS})
_HTTP_FAULTS = {Fault.ERROR500: 500, Fault.ERROR503: 503, Fault.ERROR429: 429}
_MID_STREAM = frozenset({Fault.RESET, Fault.TRUNCATE, Fault.ERROR_EVENT})
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request to be answered, and what decides the answer.

    Attributes:
        number: Which request it is, from 0; what jitter and faults hang on.
        model: The model that answers.
    """

    connection: Connection
    request: Request
    number: int
    behavior: Behavior
    fault: Fault | None
    model: str

    @property
    def id(self) -> str:
        """The request's id, in the answer and in its head."""
        return f"ref-{self.number}"

    def times(self, length: int) -> list[int]:
        """When each token is due; one entry, the answer's, if there is no token."""
        offsets = self.behavior.token_times(self.number, max(length, 1), self.fault)
        return [self.request.read_ns + offset for offset in offsets]

    def event(self, event: bytes) -> bytes:
        """Stamp one event and frame it as a chunk: to be written at once."""
        return chunk(answers.close_event(event, self.request.read_ns, monotonic_ns()))

    def head(self, content_type: str, framing: str) -> bytes:
        """Return the head of the answer."""
        return head(
            200, content_type, framing, f"x-request-id: {self.id}", "cache-control: no-cache"
        )


class Reference:
    """An OpenAI-compatible endpoint with known times and faults, on loopback only.

    Attributes:
        behavior: May be replaced while it runs; answers under way keep the old one.
        counts: Requests to be answered with output or a fault, by fault.
        port: The one asked for; 0 until a free one is found by `start`.
    """

    def __init__(self, behavior: Behavior | None = None, *, port: int = 0) -> None:
        self.behavior = behavior or Behavior()
        self.counts: Counter[Fault | None] = Counter()
        self.port = port
        self._numbers = itertools.count()
        self._plays: dict[Connection, Play | None] = {}
        self._server: asyncio.Server | None = None
        self._pacer: Pacer | None = None
        self._holder: socket.socket | None = None
        self._again: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The base URL, `/v1` included."""
        return f"http://{_HOST}:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen; also after `refuse`, on the same port.

        Raises:
            OSError: The port is taken.
        """
        loop = asyncio.get_running_loop()
        self._let_go()
        self._server = await loop.create_server(self._connect, _HOST, self.port, backlog=_BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        if self._pacer is None:
            self._pacer = Pacer(loop)

    def refuse(self) -> None:
        """Refuse connections and break the open ones, but keep the port for `start`."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind((_HOST, self.port))
        self._break()

    async def close(self) -> None:
        """Break what is open and stop listening."""
        if self._again is not None:
            self._again.cancel()
        self._let_go()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._break()
        if server is not None:
            await server.wait_closed()
        if self._pacer is not None:
            self._pacer.close()
            self._pacer = None

    def _let_go(self) -> None:
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def _break(self) -> None:
        for connection in tuple(self._plays):
            connection.abort()

    def _connect(self) -> Connection:
        return Connection(self._answer, self._opened, self._lost)

    def _opened(self, connection: Connection) -> None:
        self._plays[connection] = None

    def _lost(self, connection: Connection) -> None:
        play = self._plays.pop(connection)
        if play is not None:
            play.close()

    def _answer(self, connection: Connection, request: Request) -> None:
        try:
            self._route(connection, request)
        except RefusedError as exc:
            body = answers.error_document(str(exc), exc.status, exc.code)
            _answer_now(connection, request, body, exc.status, *exc.headers)

    def _route(self, connection: Connection, request: Request) -> None:
        path, get = request.path, request.method == "GET"
        if path == "/control":
            self._control(connection, request)
        elif get and path == "/health":
            _answer_now(connection, request, {"status": "ok"})
        elif path.startswith("/v1/") and not self._may_enter(request):
            raise RefusedError("Incorrect API key provided", 401, "invalid_api_key")
        elif get and path == "/v1/models":
            _answer_now(connection, request, answers.models_document(self.behavior.models()))
        elif path not in _API:
            raise RefusedError(f"no such path: {path}", 404)
        elif request.method != "POST":
            raise RefusedError("use POST", 405)
        else:
            self._begin(connection, request)

    def _may_enter(self, request: Request) -> bool:
        key = self.behavior.api_key
        if key is None:
            return True
        given = (
            request.headers.get("authorization", "").removeprefix("Bearer "),
            request.headers.get("api-key", ""),
            *request.query.get("key", ()),
        )
        return any(compare_digest(key.encode(), one.encode()) for one in given)

    def _begin(self, connection: Connection, request: Request) -> None:
        behavior = self.behavior
        body = _read_body(request)
        model = body.get("model", behavior.model)
        if model not in behavior.models():
            raise RefusedError(f"The model `{model}` does not exist.", 404, "model_not_found")
        number = next(self._numbers)
        fault = behavior.fault(number, model)
        if fault in _HTTP_FAULTS:
            self.counts[fault] += 1
            more = ("retry-after: 1", f"x-request-id: ref-{number}")
            raise RefusedError("out of order", _HTTP_FAULTS[fault], None, *more)
        served = "another-model" if fault is Fault.WRONG_MODEL else model
        exchange = _Exchange(connection, request, number, behavior, fault, served)
        play = _play(exchange, body)
        self.counts[fault] += 1
        self._plays[connection] = play
        assert self._pacer is not None  # noqa: S101 - there is a request, so `start` was called
        self._pacer.start(play)

    def _control(self, connection: Connection, request: Request) -> None:
        if request.method == "POST":
            # A page in a browser cannot send this type to another site without asking first.
            if request.headers.get("content-type") != _JSON:
                raise RefusedError(f"send {_JSON}", 415)
            self._change(_read_json(request.body))
        elif request.method != "GET":
            raise RefusedError("use GET or POST", 405)
        counts = {fault or "none": n for fault, n in self.counts.items()}
        shown = {**msgspec.to_builtins(self.behavior), "api_key": None}
        _answer_now(connection, request, {"behavior": shown, "counts": counts})

    def _change(self, changes: dict[str, Any]) -> None:
        seconds = changes.pop("refuse", None)
        now = msgspec.to_builtins(self.behavior)
        if unknown := changes.keys() - now.keys():
            raise RefusedError(f"unknown: {', '.join(sorted(unknown))}")
        try:
            self.behavior = msgspec.convert({**now, **changes}, Behavior)
        except msgspec.ValidationError as exc:
            raise RefusedError(str(exc)) from None
        if isinstance(seconds, int | float) and self._again is None:
            self._again = asyncio.ensure_future(self._refuse_for(seconds))

    async def _refuse_for(self, seconds: float) -> None:
        await asyncio.sleep(0)  # after the answer to the one who asked
        self.refuse()
        await asyncio.sleep(seconds)
        self._again = None
        await self.start()


def _answer_now(
    connection: Connection,
    request: Request,
    document: Mapping[str, Any],
    status: int = 200,
    *headers: str,
) -> None:
    body = answers.close_document(document, request.read_ns, monotonic_ns())
    connection.send(head(status, _JSON, f"content-length: {len(body)}", *headers) + body)
    connection.finish()


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise RefusedError(f"not a JSON object: {exc}") from None


def _read_body(request: Request) -> dict[str, Any]:
    """Return the request's fields; those of a form as text, but for the file."""
    if request.path != _TRANSCRIPTIONS:
        return _read_json(request.body)
    form = answers.parse_form(request.body, request.headers.get("content-type", ""))
    return {
        name: value if name == "file" else value.decode("utf-8", "replace")
        for name, value in form.items()
    }


def _play(exchange: _Exchange, body: Mapping[str, Any]) -> Play:
    path = exchange.request.path
    lookup = LOOKUPS.get(path)
    if lookup is not None:
        document = lookup.document(body, exchange.model)
        if exchange.fault is Fault.EMPTY:
            document[lookup.rows] = []
        return _play_document(exchange, document, 1)
    reply = _plan_reply(exchange, body)
    stream = body.get("stream") in (True, "true")
    if path == _TRANSCRIPTIONS:
        if stream:
            return _play_stream(exchange, answers.transcription_script(reply), reply.length)
        document = answers.transcription_document(reply, body)
        return _play_document(exchange, document, reply.length)
    generation = GENERATIONS[path]
    if stream:
        return _play_stream(exchange, generation.script(reply), reply.length)
    return _play_document(exchange, generation.document(reply), reply.length)


def _plan_reply(exchange: _Exchange, body: Mapping[str, Any]) -> Reply:
    prompt = 0
    generation = GENERATIONS.get(exchange.request.path)
    if generation is not None:
        if not body.get(generation.prompt):
            raise RefusedError(f"'{generation.prompt}' is missing")
        prompt = answers.count_words(body[generation.prompt])
    natural = exchange.behavior.tokens
    limit = next((body[name] for name in _LIMITS if body.get(name) is not None), natural)
    if not isinstance(limit, int) or limit < 1:
        raise RefusedError("the output limit must be a whole number of at least 1")
    options = body.get("stream_options")
    return Reply(
        id=exchange.id,
        model=exchange.model,
        prompt_tokens=prompt,
        length=0 if exchange.fault is Fault.EMPTY else min(natural, limit),
        finish="length" if limit < natural and exchange.fault is not Fault.EMPTY else "stop",
        usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _play_stream(exchange: _Exchange, script: Script, length: int) -> Play:
    connection, fault, times = exchange.connection, exchange.fault, exchange.times(length)
    opening = b"".join(exchange.event(event) for event in script.opening)
    connection.send(exchange.head(_EVENTS, "transfer-encoding: chunked") + opening)
    closing, done = script.closing, script.done
    half = cut(length) if fault in _MID_STREAM else length
    for index in range(half):
        yield times[index]
        connection.send(exchange.event(script.token(index)))
    if fault in _MID_STREAM:
        yield times[half - 1] + round(exchange.behavior.gap * 1e9)
        if fault is Fault.RESET:
            connection.reset()
            return
        closing, done = (), False
        if fault is Fault.ERROR_EVENT:
            closing, done = (script.error,), script.done
    elif not length:
        yield times[0]
    ending = b"".join(exchange.event(event) for event in closing)
    connection.send(ending + (chunk(answers.DONE) if done else b"") + LAST_CHUNK)
    connection.finish()


def _play_document(exchange: _Exchange, document: Mapping[str, Any], length: int) -> Play:
    connection, fault = exchange.connection, exchange.fault
    yield exchange.times(length)[-1]
    if fault is Fault.RESET:
        connection.reset()
        return
    if fault is Fault.ERROR_EVENT:
        document = answers.error_document("the engine died", 500)
    body = answers.close_document(document, exchange.request.read_ns, monotonic_ns())
    frame = exchange.head(_JSON, f"content-length: {len(body)}")
    if fault is Fault.TRUNCATE:
        connection.send(frame + body[: len(body) // 2])
        connection.close()
        return
    connection.send(frame + body)
    connection.finish()
