"""The mark of tests that run on both metadata stores: the core of what a cluster does, since each run takes seconds."""

import pytest

SQLITE, ETCD = "sqlite", "etcd"

on_both_stores = pytest.mark.parametrize(
    "store", [SQLITE, pytest.param(ETCD, marks=pytest.mark.xdist_group("etcd"))], indirect=True
)
