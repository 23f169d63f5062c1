"""From an address to a metadata store. What a store needs is imported only when it is the one."""

from __future__ import annotations

from pathlib import Path

from penstock.core.config_values import ConfigError
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metadata_address import SqliteAddress, parse_metadata_address
from penstock.metadata.store import MetadataStore

METADATA_FILE = "metadata.db"


async def open_store(address: str | None, data_dir: str) -> MetadataStore:
    """The store at the address; without one, a file in the data directory.

    Raises BrokerError or InvalidMetadata when it cannot be had.
    """
    try:
        where = (
            SqliteAddress(str(Path(data_dir) / METADATA_FILE)) if address is None else parse_metadata_address(address)
        )
    except ConfigError as refused:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(refused)) from None
    if isinstance(where, SqliteAddress):
        from penstock.metadata.sqlite_store import SqliteStore

        return await SqliteStore.open(Path(where.path))
    try:
        from penstock.metadata.etcd_store import EtcdStore
    except ImportError as error:
        raise BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"etcd needs more packages: pip install 'penstock[etcd]' ({error})"
        ) from None
    return await EtcdStore.open(where)
