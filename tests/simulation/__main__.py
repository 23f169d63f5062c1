"""`python -m tests.simulation --seed 7` repeats a run and tells what happens; `--seeds 500` makes many, in silence."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.faults import DEFAULT_EVENTS, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first, or only, seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, help="how many before all is mended")
    options = parser.parse_args()
    tell = print if options.seeds == 1 else None
    began_s, computed_s, failed, events = time.perf_counter(), time.process_time(), 0, 0
    for seed in range(options.seed, options.seed + options.seeds):
        try:
            cluster = run_seed(seed, options.events, tell=tell)
            assert cluster.events >= options.events and cluster.checker.acknowledged, "next to nothing happened"
            events += cluster.events
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if options.seeds == 1:
                traceback.print_exception(error)
    took_s = time.perf_counter() - began_s
    computed_s = time.process_time() - computed_s
    print(f"{options.seeds} seeds, {events} events, {failed} failed, in {took_s:.1f} s")
    print(f"{60 * options.seeds / took_s:.0f} seeds a minute, {60 * options.seeds / computed_s:.0f} in one of a core")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
