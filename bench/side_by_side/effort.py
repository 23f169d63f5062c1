"""How much is sent in one repetition: enough for a figure, for a quick look, or just to see that everything works."""

from dataclasses import dataclass

from bench.side_by_side.loads import VOLUME_BYTES


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything; a row's meaning does not depend on it."""

    volume_bytes: int = VOLUME_BYTES
    counts_share: float = 1.0
    """Of messages and requests."""
    seconds: float = 5.0

    def count(self, full: int) -> int:
        return max(64, int(full * self.counts_share))


FULL, SMALL = Effort(), Effort(192 << 20, 0.5, 3.0)
TINY = Effort(16 << 20, 0.02, 1.0)
EFFORTS = {"full": FULL, "small": SMALL, "tiny": TINY}
