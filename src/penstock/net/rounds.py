"""Many small questions to other brokers, asked in rounds: one request at a time to each of them, and what comes up
meanwhile goes together with the next.

Where an answer waits for a flush at the other end, a round waits for one. And of two questions to the same broker the
earlier one arrives first: the next round begins when the last one is answered or its channel has ended, and the other
end can tell a channel that was replaced (`Session.connection_id`).

What waits is bounded: whoever asks too much is refused, and comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.net.channel import Address, Channel, Channels, NotSent
from penstock.runtime.tasks import TaskGroup

Question = TypeVar("Question")
Answer = TypeVar("Answer")

MAX_WAITING = 10_000
# Together below what is taken as one request, however long the names in them are.
MAX_IN_A_ROUND = 100


class Rounds(Generic[Question, Answer]):
    def __init__(
        self,
        name: str,
        exchange: Callable[[Channel, Sequence[Question]], Awaitable[Sequence[Answer | BrokerError]]],
        *,
        address_of: Callable[[BrokerId], Address | None],
        channels: Channels,
        tasks: TaskGroup,
    ) -> None:
        """`exchange` asks all of them in one request, and has an answer to each; or raises BrokerError.

        `channels` are for nothing else: what shares a channel waits for what is before it.
        """
        self._name = name
        self._exchange = exchange
        self._address_of = address_of
        self._channels = channels
        self._tasks = tasks
        # Of each broker that is being asked, what is for the next rounds.
        self._waiting: dict[BrokerId, deque[tuple[Question, Callable[[Answer | BrokerError], None]]]] = {}

    def ask(self, broker_id: BrokerId, question: Question, done: Callable[[Answer | BrokerError], None]) -> None:
        """Calls `done`, now or later, once: with the answer or with what kept it from coming."""
        waiting = self._waiting.get(broker_id)
        if waiting is None:
            waiting = self._waiting[broker_id] = deque()
            self._tasks.spawn(self._ask_all(broker_id), name=f"{self._name}-{broker_id}")
        if len(waiting) >= MAX_WAITING:
            done(NotSent(ErrorCode.REQUEST_TIMED_OUT, f"too much is to be asked of broker {broker_id}"))
            return
        waiting.append((question, done))

    async def _ask_all(self, broker_id: BrokerId) -> None:
        waiting = self._waiting[broker_id]
        while waiting:
            asked = [waiting.popleft() for _ in range(min(len(waiting), MAX_IN_A_ROUND))]
            answers = await self._ask(broker_id, [question for question, _ in asked])
            for (_, done), answer in zip(asked, answers, strict=True):
                done(answer)
        del self._waiting[broker_id]

    async def _ask(self, broker_id: BrokerId, questions: Sequence[Question]) -> Sequence[Answer | BrokerError]:
        try:
            address = self._address_of(broker_id)
            if address is None:
                raise NotSent(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} is not there")
            return await self._exchange(await self._channels.to(address), questions)
        except BrokerError as error:
            return [error] * len(questions)
