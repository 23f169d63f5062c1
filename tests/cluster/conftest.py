"""Where the brokers of a cluster keep their metadata: a file, or for tests that ask for both also etcd."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.cluster.stores import ETCD, SQLITE
from tests.testkit.etcd import EtcdCluster


@pytest.fixture
def store(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings for a cluster. A file is the default of a cluster, and needs none."""
    if getattr(request, "param", SQLITE) != ETCD:
        return {}
    etcd: EtcdCluster = request.getfixturevalue("etcd")
    return {"penstock.metadata": etcd.address(f"cluster-{uuid.uuid4().hex}")}
