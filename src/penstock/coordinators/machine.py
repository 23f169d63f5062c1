"""What a coordinator's machine is to the shell around it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.coordinators.decision import Decision, LogRecord, Now


class Machine(Protocol):
    def apply(self, record: LogRecord) -> None:
        """Raises ValueError for a record that makes no sense."""

    def loaded(self, now: Now, decision: Decision) -> None: ...
    def due(self, now: Now, decision: Decision) -> None:
        """The earliest deadline, if its time has come."""

    def next_deadline_ms(self) -> int | None: ...


@runtime_checkable
class TransactionalMachine(Machine, Protocol):
    """One whose log takes part in the transactions of producers."""

    def apply_pending(self, record: LogRecord, producer_id: int) -> None:
        """A record that takes effect when the producer's transaction is committed. Raises what `apply` does."""

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        """Also told when nothing is pending."""
