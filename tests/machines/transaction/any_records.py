"""Records of a transaction coordinator with any content."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.coordinators.transaction.records import TransactionRecord, TransactionStatus, TransactionTombstone
from penstock.core.ids import TopicPartition

TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.just("x" * 200))
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.one_of(st.just(-1), st.integers(-(2**63), 2**63 - 1))
PARTITIONS = st.frozensets(st.builds(TopicPartition, TEXT, INT32), max_size=5)

any_tombstone = st.builds(TransactionTombstone, TEXT)


@st.composite
def any_record(draw: st.DrawFn) -> TransactionRecord:
    status = draw(st.sampled_from(TransactionStatus))
    return TransactionRecord(
        transactional_id=draw(TEXT),
        producer_id=draw(INT64),
        producer_epoch=draw(INT16),
        timeout_ms=draw(INT32),
        status=status,
        partitions=frozenset() if status is TransactionStatus.EMPTY else draw(PARTITIONS),
        last_update_ms=draw(INT64),
        start_ms=draw(INT64),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        next_producer_epoch=draw(INT16),
        client_transaction_version=draw(st.integers(0, 2)),
    )
