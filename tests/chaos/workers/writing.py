"""Writing with confluent-kafka, plainly or in transactions, each step written down before it is taken.

A failed delivery is unknown unless the record was too large: librdkafka does not tell whether what it gave up on had
been sent before. A failed commit is unknown, unless an abort after it is answered with success.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.workers.process import Options, client_settings
from tests.history.events import Ending, Position
from tests.history.recording import Recorder

_PADDING = b"." * 100
_ATTEMPT_S = 5.0
# How long a call is tried again: longer than any broker is away.
_PATIENCE_S = 80.0
_FLUSH_WITHIN_S = 60.0
# So is this. An idempotent librdkafka gives up for good, "unable to reconstruct MessageSet", when only a part of a
# batch that it has sent before times out.
_MESSAGE_TIMEOUT_MS = 120_000


class Writer:
    def __init__(self, options: Options, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._answers: list[tuple[int, KafkaError | None, Message]] = []
        self.producer = self._make()

    def _make(self) -> Producer:
        settings = client_settings(self._options) | {
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
            "enable.idempotence": self._options.kind != "plain",
        }
        if self._options.transactional_id is not None:
            timeout_ms = self._options.transaction_timeout_ms
            settings |= {
                "transactional.id": self._options.transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            }
        return Producer(settings)

    def write(
        self,
        topic: str,
        partition: int,
        *,
        transaction: int | None = None,
        source: Position | None = None,
    ) -> None:
        line = self._recorder.writing(topic, partition, transaction=transaction, source=source)
        value = self._recorder.id_of(line).encode() + b" " + _PADDING

        def keep(error: KafkaError | None, message: Message) -> None:
            self._answers.append((line, error, message))

        while True:
            try:
                self.producer.produce(topic, value, partition=partition, on_delivery=keep)
            except BufferError:
                self.serve(0.1)
                continue
            except KafkaException:
                self._recorder.written(line, "failed")
                raise
            self.serve(0)
            return

    def _settle(self, line: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            # The answer to a retry that the broker knows to be old has no offset.
            self._recorder.written(line, "ok", -1 if offset is None or offset < 0 else offset)
        else:
            is_certain = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
            self._recorder.written(line, "failed" if is_certain else "unknown")

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Around every call that has callbacks.

        confluent-kafka sets the exception of a fatal error and goes on with its callbacks: what they do then fails
        anywhere, and is blamed for it. So they do next to nothing, and answers are written down afterwards.
        """
        try:
            yield
        except SystemError as error:
            raise KafkaException(KafkaError(KafkaError._FATAL, str(error), True)) from error
        finally:
            answers, self._answers = self._answers, []
            for answer in answers:
                self._settle(*answer)

    def serve(self, timeout_s: float) -> None:
        with self._serving():
            self.producer.poll(timeout_s)

    def flush(self, timeout_s: float = _FLUSH_WITHIN_S) -> int:
        with self._serving():
            return int(self.producer.flush(timeout_s))


class TransactionalWriter(Writer):
    """Transactions by the book: retriable errors are tried again, others abort, fatal ones need a new producer."""

    def __init__(self, options: Options, recorder: Recorder) -> None:
        super().__init__(options, recorder)
        self._initialize()

    def renew(self) -> None:
        """A producer that was fenced, or is broken, is replaced; the coordinator ends what it left behind."""
        with suppress(KafkaException):  # it says once more that it is fenced; the outcomes are unknown, said or not
            self.producer.purge()
            self.flush(0)
        self.producer = self._make()
        self._initialize()

    def _initialize(self) -> None:
        self._persist(self.producer.init_transactions)

    def begin(self) -> int:
        try:
            self.producer.begin_transaction()
        except KafkaException:  # fenced since the last one
            self.renew()
            self.producer.begin_transaction()
        return self._recorder.transaction()

    def add_offsets(self, transaction: int, group: str, positions: Sequence[Position], metadata: Any) -> None:
        self._recorder.transaction_offsets(transaction, group, positions)
        offsets = [TopicPartition(*position) for position in positions]
        self._persist(partial(self.producer.send_offsets_to_transaction, offsets, metadata))

    def commit(self, transaction: int) -> None:
        """Raises when it is not certain that it was committed."""
        self.flush(_ATTEMPT_S)
        self._end(transaction, "commit", self.producer.commit_transaction)

    def abort(self, transaction: int) -> None:
        self._end(transaction, "abort", self.producer.abort_transaction)

    def give_up(self, transaction: int, failure: KafkaException) -> None:
        """What to do after any other call has failed."""
        if failure.args[0].txn_requires_abort():
            try:
                self.abort(transaction)
                return
            except KafkaException:
                pass  # then it is as if it were fatal
        self.renew()

    def _end(self, transaction: int, ending: Ending, call: Callable[[float], Any]) -> None:
        self._recorder.ending(transaction, ending)
        try:
            self._persist(call)
        except KafkaException:
            self._recorder.ended(transaction, ending, "unknown")
            raise
        self._recorder.ended(transaction, ending, "ok")

    def _persist(self, call: Callable[[float], Any]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with self._serving():
                    call(_ATTEMPT_S)
                return
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise
