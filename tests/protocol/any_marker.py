"""End markers with any content."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.protocol.control import EndMarker

any_marker = st.builds(
    EndMarker,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    is_commit=st.booleans(),
    coordinator_epoch=st.integers(-(2**31), 2**31 - 1),
)
