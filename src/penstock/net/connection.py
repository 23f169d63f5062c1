"""One client's connection: frames in, answers out in the order of their requests, bounded memory in both directions.

The connection owns its non-blocking socket and is driven by readiness callbacks, not by streams or tasks: at a hundred
thousand requests a second there is no room for either. What must stay true:

- A frame handed to `serve` is a view of the receive buffer, valid until the next tick has run. Whoever needs it longer
  calls `lend()`; the connection then leaves that buffer to them and takes a new one.
- Answers leave in request order, whenever they are completed (`Answer.complete`).
- A client that does not read its answers, or pipelines without end, is not read from until it catches up.
- The receive buffer grows with bytes received, never with a length a client merely claims.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.core.errors import MalformedRequest
from penstock.core.ids import BrokerId
from penstock.net.spans import WINDOWS, File, FileSpan, read_span, send_file
from penstock.runtime.tick import Tick

RECEIVE_BUFFER_BYTES = 16 * 1024
# A client that fills its buffer with one read gets a larger one, so that pipelined requests cost fewer system calls.
MAX_READ_AHEAD_BYTES = 256 * 1024
# A span of up to this size is cheaper to read than to map,
MAX_READ_BYTES = 16 * 1024
# or, where it goes to another machine, than to be sent by a system call of its own.
MAX_READ_TO_OTHERS_BYTES = 128 * 1024
# What is handed to the socket at once: enough for its buffer. What is read of it waits with a client that is slow.
MAX_GATHERED_BYTES = 1024 * 1024
MAX_GATHERED_PARTS = 1000  # the kernel takes 1,024 in one call
MAX_ANSWERS_WAITING = 256
# While somebody keeps frames, each of which may be large, no more than so many requests are taken on.
MAX_ANSWERS_WAITING_WITH_FRAMES = 4
MAX_BYTES_UNSENT = 1024 * 1024
# A large request may take longer than the deadline as long as it arrives at this rate or faster.
MIN_RECEIVE_BYTES_PER_MS = 64


Part = bytes | bytearray | FileSpan
_IN_MEMORY = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class Session:
    """Who is at the other end. Who proves to be somebody gets a session of their own (`Connection.admit`).

    `broker_id` is that of a broker of this cluster, which proved it; None is a client.
    """

    connection_id: int
    listener: str
    client_host: str
    principal: str = "User:ANONYMOUS"
    broker_id: BrokerId | None = None


class Answer:
    """The place of one response in a connection's order."""

    __slots__ = ("_connection", "on_connection_closed", "parts")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.parts: Sequence[Part] | None = None
        # Set while something waits on behalf of this answer, to end the wait when nobody is left to hear it.
        self.on_connection_closed: Callable[[], object] | None = None

    @property
    def session(self) -> Session:
        return self._connection.session

    def complete(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._connection.answered()

    def after_writes(self, work: Callable[[], None]) -> None:
        """What several appends of this turn have part in is worth doing once, when all of them are written."""
        self._connection.after_writes(work)

    def abandon(self, reason: str) -> None:
        """There is no answer to give: all the protocol allows is to close the connection."""
        self._connection.close(reason)


class Connection:
    __slots__ = (
        "_answers",
        "_buffer",
        "_client_is_here",
        "_end",
        "_largest_frame",
        "_lent",
        "_loop",
        "_max_answers",
        "_max_frame_bytes",
        "_on_closed",
        "_out",
        "_out_bytes",
        "_paused",
        "_reading_since_ms",
        "_send_scheduled",
        "_serve",
        "_socket",
        "_start",
        "_tick",
        "_view",
        "_writing",
        "active",
        "closed",
        "idle_since_ms",
        "received_bytes",
        "sent_bytes",
        "session",
    )

    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        *,
        serve: Callable[[Connection, memoryview], None],
        on_closed: Callable[[Connection, str], None],
        tick: Tick,
        loop: asyncio.AbstractEventLoop,
        max_frame_bytes: int,
        now_ms: int,
    ) -> None:
        self._socket = sock
        self.session = session
        self._serve = serve
        self._on_closed = on_closed
        self._tick = tick
        self._loop = loop
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()  # none for who never says anything
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._lent = False
        self._largest_frame = 0
        self._max_answers = MAX_ANSWERS_WAITING
        self._answers: deque[Answer] = deque()
        self._out: deque[Part | memoryview] = deque()
        self._out_bytes = 0
        # A connection that does not leave the machine has the same address at both ends.
        self._client_is_here = sock.getsockname()[0] == session.client_host
        self._send_scheduled = False
        self._writing = False
        self._paused = False
        self._reading_since_ms: int | None = None
        self.closed = False
        self.active = True
        self.idle_since_ms = now_ms
        self.received_bytes = 0
        self.sent_bytes = 0
        loop.add_reader(sock.fileno(), self._readable)

    # Receiving

    def _readable(self) -> None:
        if self._lent or self._end == len(self._buffer):
            self._make_room()
        elif self._start == self._end:
            self._start = self._end = 0
        try:
            count = self._socket.recv_into(self._view[self._end :])
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        if count == 0:
            self.close("closed by the client" if self._start == self._end else "closed by the client inside a request")
            return
        self.active = True
        self.received_bytes += count
        self._end += count
        self._serve_frames()

    def _serve_frames(self) -> None:
        start, end, view = self._start, self._end, self._view
        serve = self._serve
        try:
            while end - start >= 4 and not self.closed:
                if len(self._answers) >= self._max_answers or self._out_bytes > MAX_BYTES_UNSENT:
                    self._pause()
                    break
                size = int.from_bytes(view[start : start + 4], "big", signed=True)
                if not 0 < size <= self._max_frame_bytes:
                    raise MalformedRequest(
                        f"a request of {size} bytes (socket.request.max.bytes={self._max_frame_bytes})"
                    )
                frame_end = start + 4 + size
                if frame_end > end:
                    break
                self._start = start = frame_end
                self._reading_since_ms = None
                if size > self._largest_frame:
                    self._largest_frame = size
                serve(self, view[frame_end - size : frame_end])
        except MalformedRequest as error:
            self.close(f"malformed request: {error}")

    def _make_room(self) -> None:
        """Move what is unread to the front of a buffer with room behind it.

        The buffer doubles while a request larger than it is arriving, or while the client keeps filling it.
        """
        unread = self._end - self._start
        size = len(self._buffer)
        if unread >= size // 2 or (size < MAX_READ_AHEAD_BYTES and not self._lent):
            size = max(2 * size, RECEIVE_BUFFER_BYTES)
        if self._lent or size != len(self._buffer):
            buffer = bytearray(size)
            buffer[:unread] = self._view[self._start : self._end]
            self._buffer = buffer
            self._view = memoryview(buffer)
            self._lent = False
        else:
            self._view[:unread] = self._view[self._start : self._end]
        self._start, self._end = 0, unread

    def lend(self) -> None:
        """The frames handed out stay valid for as long as they are referenced."""
        self._lent = True
        self._max_answers = MAX_ANSWERS_WAITING_WITH_FRAMES

    def take_turns(self) -> None:
        """No further request is taken on before all that were are answered: for requests that take time to answer."""
        self._max_answers = 1

    def hand_to(self, serve: Callable[[Connection, memoryview], None]) -> None:
        """The frames after this one are somebody else's to serve. This one must `take_turns`, or they may not be."""
        self._serve = serve

    def admit(self, session: Session, serve: Callable[[Connection, memoryview], None], max_frame_bytes: int) -> None:
        """Whoever is at the other end has proven who they are: from the next frame on they are served as that."""
        self.session = session
        self._max_frame_bytes = max_frame_bytes
        self.hand_to(serve)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket.fileno())

    def _resume(self) -> None:
        self._paused = False
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._serve_frames()

    # Answering

    def expect_answer(self) -> Answer:
        answer = Answer(self)
        self._answers.append(answer)
        return answer

    def answered(self) -> None:
        """Some answer was completed: what is complete at the head of the queue goes out with the tick."""
        if not self._send_scheduled and not self.closed:
            self._send_scheduled = True
            self._tick.send(self._collect)

    def after_writes(self, work: Callable[[], None]) -> None:
        self._tick.send(work)

    def _collect(self) -> None:
        self._send_scheduled = False
        if self.closed:
            return
        answers, out = self._answers, self._out
        chunk: list[bytes | bytearray] = []
        while answers and (parts := answers[0].parts) is not None:
            answers.popleft()
            for part in parts:
                if isinstance(part, (bytes, bytearray)):
                    chunk.append(part)
                    continue
                self._queue_bytes(chunk)
                chunk = []
                out.append(part)
        self._queue_bytes(chunk)
        if not answers:
            self._max_answers = MAX_ANSWERS_WAITING
        if not self._writing:
            self._send()
        self._resume_if_caught_up()

    def _queue_bytes(self, chunk: list[bytes | bytearray]) -> None:
        if chunk:
            joined = chunk[0] if len(chunk) == 1 else b"".join(chunk)
            self._out.append(joined)
            self._out_bytes += len(joined)

    def _resume_if_caught_up(self) -> None:
        if (
            self._paused
            and not self.closed
            and len(self._answers) <= self._max_answers // 2
            and self._out_bytes <= MAX_BYTES_UNSENT // 2
        ):
            self._resume()

    def _writable(self) -> None:
        self._send()
        self._resume_if_caught_up()

    def _send(self) -> None:
        """Send until the queue is empty or the socket is full."""
        out = self._out
        try:
            while out:
                part = out[0]
                if len(out) == 1 and isinstance(part, _IN_MEMORY):
                    self._sent(self._socket.send(part))
                else:
                    self._send_several()
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket.fileno(), self._writable)
            return
        except OSError as error:
            self.close(f"send failed: {error.strerror}")
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _send_several(self) -> None:
        """What stands at the head of the queue and need not go by itself."""
        out = self._out
        contents: list[bytes | bytearray | memoryview] = []
        size = count = 0
        for part in out:
            if size >= MAX_GATHERED_BYTES or len(contents) >= MAX_GATHERED_PARTS:
                break
            if isinstance(part, _IN_MEMORY):
                contents.append(part)
                size += len(part)
            else:
                pieces = self._pieces(part, count)
                if pieces is None:
                    break
                contents += pieces
                size += sum(map(len, pieces))  # more than is gathered at once, if it is not all of the part
            count += 1
        if contents:
            self._sent(self._socket.sendmsg(contents, (), socket.MSG_MORE if count < len(out) else 0))
        else:
            span = out[0]
            assert not isinstance(span, _IN_MEMORY)
            self._sent(send_file(self._socket, span))

    def _pieces(self, part: FileSpan, place: int) -> Sequence[bytes | memoryview] | None:
        """What is to be sent of a span; None if it goes by itself, by sendfile. What is read is kept in its place."""
        if self._client_is_here and part.length > MAX_READ_BYTES:
            mapped = WINDOWS.views(part)
            if mapped is not None:
                return mapped
        if part.length > MAX_READ_TO_OTHERS_BYTES:
            return None
        content = self._out[place] = read_span(part)
        self._out_bytes += part.length
        return (content,)

    def _sent(self, count: int) -> None:
        """So much of the head of the queue is gone."""
        out = self._out
        self.active = True
        self.sent_bytes += count
        while count:
            part = out[0]
            if isinstance(part, _IN_MEMORY):
                length = len(part)
                self._out_bytes -= min(count, length)
            else:
                length = part.length
            if count < length:
                out[0] = _rest(part, count)
                return
            out.popleft()
            count -= length

    # Ending

    @property
    def is_quiet(self) -> bool:
        """Nothing asked that is unanswered, but for what only waits for news, and nothing answered that is unsent."""
        return not self._out and all(answer.on_connection_closed is not None for answer in self._answers)

    def sweep(self, now_ms: int, *, idle_limit_ms: int, read_deadline_ms: int) -> None:
        """Called every second or so: ends connections that are idle, or that take too long over one request.

        A negative idle limit is none.
        """
        if self.active:
            self.active = False
            self.idle_since_ms = now_ms
        elif 0 <= idle_limit_ms < now_ms - self.idle_since_ms:
            self.close(f"idle for {idle_limit_ms} ms (connections.max.idle.ms)")
            return
        if self._paused and self._is_hung_up():
            self.close("closed by the client")
            return
        unread = self._end - self._start
        if unread == 0 or self._paused:
            self._reading_since_ms = None
            if unread == 0 and now_ms - self.idle_since_ms > 5_000:
                self._shrink(RECEIVE_BUFFER_BYTES)
            elif unread == 0:
                # What one large request needed is not kept for the small ones that follow it.
                self._shrink(max(MAX_READ_AHEAD_BYTES, 4 * self._largest_frame))
            self._largest_frame = 0
        elif self._reading_since_ms is None:
            self._reading_since_ms = now_ms
        elif now_ms - self._reading_since_ms > read_deadline_ms + unread // MIN_RECEIVE_BYTES_PER_MS:
            self.close(f"request not received within {read_deadline_ms} ms (penstock.request.read.deadline.ms)")

    def _is_hung_up(self) -> bool:
        """Whether the client is gone; a paused connection does not read, so it would not notice by itself."""
        hang_up = select.poll()
        hang_up.register(self._socket.fileno(), select.POLLRDHUP)
        return bool(hang_up.poll(0))

    def _shrink(self, size: int) -> None:
        if len(self._buffer) <= size:
            return
        self._buffer = bytearray()  # none for who never says anything
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._lent = False

    def close_after_answers(self, reason: str) -> None:
        """As `close`, once what is answered now has been sent; what the client does not take at once is lost."""
        self._tick.send(partial(self.close, reason))

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        descriptor = self._socket.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        self._socket.close()
        self._out.clear()
        for answer in self._answers:
            if answer.on_connection_closed is not None:
                answer.on_connection_closed()
        self._answers.clear()
        self._on_closed(self, reason)


def _rest(part: Part | memoryview, sent: int) -> Part | memoryview:
    if isinstance(part, _IN_MEMORY):
        return memoryview(part)[sent:]
    return _RestOfSpan(part.file, part.position + sent, part.length - sent)


@dataclass(frozen=True, slots=True)
class _RestOfSpan:
    file: File
    position: int
    length: int
