"""Which cluster a broker belongs to, and which of its brokers it is: settled once, and kept in its data directory.

A data directory is of one cluster and one broker for good. A store without a cluster is new, and is given one only by
a broker that is new as well: a directory with data must not found a cluster that knows nothing of it.
"""

from __future__ import annotations

import os

from penstock.controller.brokers import initialize_cluster
from penstock.controller.commands import InitializeCluster
from penstock.controller.features import check_release
from penstock.controller.registration import check_owner, free_broker_id, reserve_broker_id
from penstock.controller.service import SEED_BYTES
from penstock.core.config import BrokerConfig
from penstock.core.ids import BrokerId, TopicId, topic_id_to_text
from penstock.metadata.follower import Follower
from penstock.metadata.image import ClusterImage
from penstock.metadata.store import Conflict, MetadataStore
from penstock.runtime.files import Files
from penstock.storage.checkpoints import MetaProperties
from penstock.storage.log_dirs import DataDirectory, DirectoryRefused


async def join_cluster(
    config: BrokerConfig, data: DataDirectory, store: MetadataStore, follower: Follower, files: Files
) -> MetaProperties:
    """Raises DirectoryRefused when the directory belongs elsewhere, BrokerError when this release is not for it."""
    if await files.run(data.holds_partitions_of_nobody):
        raise DirectoryRefused(_without_meta(data.path, follower.image))
    cluster_id = await _cluster_id(data, store, follower)
    check_release(follower.image)
    node_id = config.optional_int("node.id")
    if node_id is None:
        node_id = await _assigned_id(data.new_directory_id, store, follower) if data.meta is None else data.meta.node_id
    if data.meta is None:
        # Before the directory is marked: one that was refused can still become another broker's.
        check_owner(BrokerId(node_id), data.new_directory_id, follower.image)
    return await files.run(data.claim, cluster_id, node_id)


def _without_meta(path: str, image: ClusterImage) -> str:
    """Whose the directory was is known to whoever knows the brokers: it must be one of those that do not run."""
    absent = [broker for broker in image.brokers.values() if broker.broker_id not in image.sessions]
    known = [
        f"version=1 cluster.id={image.cluster_id} node.id={each.broker_id} directory.id={each.directory_id}"
        for each in absent
        if each.directory_id
    ]
    lines = f" (a line for each of: {' or: '.join(known)})" if known else ""
    return (
        f"{path} holds partitions, and no meta.properties that says whose: put that file back{lines}, "
        "or start with an empty directory"
    )


async def _cluster_id(data: DataDirectory, store: MetadataStore, follower: Follower) -> str:
    present = follower.image.cluster_id
    if present is None and data.meta is not None:
        raise DirectoryRefused(
            f"{data.path} belongs to cluster {data.meta.cluster_id}, and the metadata store is empty: "
            "give the metadata back, or start with an empty directory"
        )
    while present is None or follower.image.cluster_key is None:
        command = InitializeCluster(topic_id_to_text(TopicId(os.urandom(16))))
        try:
            for transaction in initialize_cluster(command, follower.image, os.urandom(SEED_BYTES)).transactions:
                await store.commit(transaction)
        except Conflict:
            pass  # another broker was faster
        present = (await follower.refresh()).cluster_id
    return present


async def _assigned_id(directory_id: str, store: MetadataStore, follower: Follower) -> BrokerId:
    while True:
        broker_id = free_broker_id(await follower.refresh())
        try:
            await store.commit(reserve_broker_id(broker_id, follower.image, directory_id))
            return broker_id
        except Conflict:
            continue  # another broker was faster
