"""What the latency of every broker is held against: the same client and a server that does nothing."""

import pytest
from bench.machine import in_own_process
from bench.side_by_side.cores import Cores
from bench.side_by_side.latency_client import Steady, end_to_end_latencies_ms
from bench.side_by_side.latency_stub import TOPIC_ID, latency_stub

from bench import payloads, wire


@pytest.mark.parametrize(("records_per_request", "pin"), [(1, False), (20, False), (20, True)])
def test_given_the_stub_when_the_client_runs_then_it_sees_every_request_once(
    records_per_request: int, pin: bool
) -> None:
    batch = wire.batch_of(payloads.values(1_000, records_per_request))
    request, error_position = wire.produce_request("stub", 0, batch, 1), wire.produce_error_position("stub")
    steady = Steady(requests_per_s=200, records_per_request=records_per_request, seconds=0.5)

    cores = Cores.of_this_machine(pin=pin)

    with latency_stub("stub", batch) as address, cores.clients_run_on(cores.client):
        arguments = (address, request, error_position, TOPIC_ID, 0, steady)
        latencies = in_own_process(end_to_end_latencies_ms, *arguments)

    assert len(latencies) == 100
    assert min(latencies) > 0
