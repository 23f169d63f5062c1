"""That all tests with a session share one: two JVMs on two cores take twice as long, and nothing else would tell."""

import pytest
from pyspark.sql import SparkSession


def test_given_several_workers_when_tests_ask_for_the_session_then_one_worker_has_them_all(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests are not given to workers in groups (--dist loadgroup)")

    assert request.node.nodeid.endswith("@spark"), "xdist does not know of the group"
