from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.kit import NOW_MS, SMALL, a_batch, append, config, flush, records

from penstock.core.config import BrokerConfig
from penstock.core.ids import TopicId, TopicPartition
from penstock.core.topic_config import topic_config
from penstock.storage import checkpoints
from penstock.storage.epochs import EpochEntry
from penstock.storage.log import Log, LogConfig
from penstock.storage.log_dirs import Checkpoint, DataDirectory, DirectoryRefused

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("pay-ments.eu", 12)
TOPIC_ID = TopicId(bytes(range(16)))

Claim = Callable[[TopicPartition, TopicId | None], LogConfig | None]


def everything(_tp: TopicPartition, _topic_id: TopicId | None) -> LogConfig:
    return SMALL


def open_all(path: Path, claim: Claim = everything) -> tuple[DataDirectory, dict[TopicPartition, Log]]:
    data = DataDirectory.open(str(path))
    return data, data.load(claim, NOW_MS)


def a_directory_with_logs(path: Path) -> tuple[DataDirectory, dict[TopicPartition, Log]]:
    data = DataDirectory.open(str(path))
    logs = {tp: data.create(tp, TOPIC_ID, SMALL, NOW_MS) for tp in (ORDERS, PAYMENTS)}
    for log in logs.values():
        for _ in range(5):
            append(log, a_batch(2))
    return data, logs


def test_given_a_clean_stop_when_started_then_every_log_is_there_and_nothing_was_scanned(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    assert data.close(logs, {ORDERS: 10, PAYMENTS: 10}, broker_epoch=17)

    again, opened = open_all(tmp_path)

    assert (again.was_clean, again.broker_epoch) == (True, 17)
    assert opened.keys() == {ORDERS, PAYMENTS}
    assert all(log.log_end_offset == 10 and log.recovery_report is None for log in opened.values())
    assert again.high_watermarks == {ORDERS: 10, PAYMENTS: 10}


def test_given_a_start_when_the_machine_has_booted_since_then_it_is_known_that_the_page_cache_is_gone(
    tmp_path: Path,
) -> None:
    first = DataDirectory.open(str(tmp_path))
    assert not first.has_page_cache
    first.release()  # before anybody was told what may be lost
    first = DataDirectory.open(str(tmp_path))
    assert not first.has_page_cache
    first.losses_told([])
    first.release()
    second = DataDirectory.open(str(tmp_path))
    assert second.has_page_cache
    second.release()

    (tmp_path / checkpoints.PAGE_CACHE).write_text("another boot")

    third = DataDirectory.open(str(tmp_path))
    assert not third.has_page_cache
    third.losses_told([])
    third.release()
    assert DataDirectory.open(str(tmp_path)).has_page_cache


def test_given_a_log_that_begins_anew_then_its_files_are_kept_and_its_name_and_checkpoints_are_free(
    tmp_path: Path,
) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    for log in logs.values():
        flush(log)
    data.write(data.checkpoint_of(logs, {ORDERS: 10, PAYMENTS: 10}))

    name = data.set_spoilt_aside(ORDERS)

    assert name is not None
    assert (tmp_path / name / "00000000000000000000.log").stat().st_size > 0
    assert data.high_watermarks == {PAYMENTS: 10}
    assert data.create(ORDERS, TOPIC_ID, SMALL, NOW_MS).log_end_offset == 0
    data.release()
    _, opened = open_all(tmp_path)
    assert opened.keys() == {ORDERS, PAYMENTS}


def test_given_a_start_when_it_ends_without_closing_then_the_next_one_is_unclean(tmp_path: Path) -> None:
    """traps A7: the marker goes before the first log is opened."""
    data, logs = a_directory_with_logs(tmp_path)
    data.close(logs, {})
    second, _ = open_all(tmp_path)
    second.release()

    again, opened = open_all(tmp_path)

    assert not again.was_clean
    assert all(log.recovery_report is not None for log in opened.values())


def test_given_a_file_when_opened_as_a_directory_then_it_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(DirectoryRefused, match=f"{path} is a file"):
            DataDirectory.open(str(path))


def test_given_a_start_when_it_ends_before_the_logs_are_opened_then_the_next_one_is_clean(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    data.close(logs, {}, broker_epoch=17)
    DataDirectory.open(str(tmp_path)).release()

    again, opened = open_all(tmp_path)

    assert (again.was_clean, again.broker_epoch) == (True, 17)
    assert all(log.recovery_report is None for log in opened.values())


def test_given_a_log_that_cannot_be_closed_when_the_directory_is_closed_then_there_is_no_marker(
    tmp_path: Path,
) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    logs[ORDERS].fail("flush failed")

    assert not data.close(logs, {})
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_given_a_directory_in_use_when_opened_by_another_process_then_it_is_refused_until_that_one_dies(
    tmp_path: Path,
) -> None:
    code = (
        "import sys\n"
        "from penstock.storage.log_dirs import DataDirectory\n"
        "DataDirectory.open(sys.argv[1]); print('locked', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryRefused, match="in use by another broker"):
            DataDirectory.open(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
        holder.wait()

    DataDirectory.open(str(tmp_path)).release()


def test_given_another_cluster_or_node_when_claimed_then_it_is_refused(tmp_path: Path) -> None:
    data = DataDirectory.open(str(tmp_path))
    meta = data.claim("cluster-a", 1)
    data.release()
    again = DataDirectory.open(str(tmp_path))

    assert again.claim("cluster-a", 1) == meta
    with pytest.raises(DirectoryRefused, match="belongs to cluster cluster-a, not cluster-b"):
        again.claim("cluster-b", 1)
    with pytest.raises(DirectoryRefused, match="belongs to node 1, not 2"):
        again.claim("cluster-a", 2)


def test_given_meta_properties_when_read_as_kafka_reads_them_then_they_are_properties_of_version_one(
    tmp_path: Path,
) -> None:
    DataDirectory.open(str(tmp_path)).claim("cluster-a", 3)

    lines = dict(line.split("=", 1) for line in (tmp_path / "meta.properties").read_text().splitlines())

    assert (lines["version"], lines["cluster.id"], lines["node.id"]) == ("1", "cluster-a", "3")
    assert len(lines["directory.id"]) == 22


def test_given_partitions_and_no_meta_properties_when_claimed_then_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()

    with pytest.raises(DirectoryRefused, match="holds partitions"):
        DataDirectory.open(str(tmp_path)).claim("cluster-a", 3)
    assert not (tmp_path / "meta.properties").exists()


def test_given_damaged_meta_properties_when_opened_then_it_is_refused_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=a\n")

    with pytest.raises(DirectoryRefused, match=r"meta\.properties is damaged"):
        DataDirectory.open(str(tmp_path))

    assert (tmp_path / "meta.properties").read_text() == "version=1\ncluster.id=a\n"


# Partitions that come and go


def test_given_a_partition_that_no_topic_claims_when_started_then_it_is_set_aside_and_kept(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    data.close(logs, {})
    asked: dict[TopicPartition, TopicId | None] = {}

    def only_payments(tp: TopicPartition, topic_id: TopicId | None) -> LogConfig | None:
        asked[tp] = topic_id
        return SMALL if tp == PAYMENTS else None

    _, opened = open_all(tmp_path, only_payments)

    assert asked == {ORDERS: TOPIC_ID, PAYMENTS: TOPIC_ID}
    assert opened.keys() == {PAYMENTS}
    (stray,) = [path for path in tmp_path.iterdir() if path.name.endswith("-stray")]
    assert stray.name.startswith("orders-0.")
    kept = Log.open(str(stray), SMALL, now_ms=NOW_MS)
    assert kept.log_end_offset == 10


def test_given_a_deleted_partition_when_its_name_is_used_again_then_nothing_of_it_is_left(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    for log in logs.values():
        flush(log)
    data.write(data.checkpoint_of(logs, {ORDERS: 10, PAYMENTS: 10}))
    logs.pop(ORDERS).delete()

    (removed,) = data.set_deleted([ORDERS])
    fresh = data.create(ORDERS, TopicId(bytes(16)), SMALL, NOW_MS)

    assert fresh.log_end_offset == 0
    assert checkpoints.read_offsets(f"{tmp_path}/{checkpoints.RECOVERY_POINTS}") == {PAYMENTS: 10}
    assert ORDERS not in data.high_watermarks
    assert data.deleted() == [removed]
    data.remove(removed)
    assert data.deleted() == []


def test_given_a_long_topic_name_when_its_partition_is_deleted_then_the_new_name_is_not_too_long(
    tmp_path: Path,
) -> None:
    tp = TopicPartition("x" * 249, 10_000)
    data = DataDirectory.open(str(tmp_path))
    data.create(tp, TOPIC_ID, SMALL, NOW_MS)

    (removed,) = data.set_deleted([tp])

    assert len(os.path.basename(removed)) == 255


def test_given_a_deletion_that_was_not_finished_when_started_then_it_is_known_and_no_partition(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    data.set_deleted([ORDERS])
    data.release()

    again, opened = open_all(tmp_path)

    assert opened.keys() == {PAYMENTS}
    assert len(again.deleted()) == 1
    del logs


def test_given_a_log_that_cannot_be_opened_when_started_then_the_others_are(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    data.close(logs, {})
    (tmp_path / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: nonsense\n")

    again, opened = open_all(tmp_path)

    assert opened.keys() == {PAYMENTS}
    assert again.failed.keys() == {ORDERS}


def test_given_a_log_that_cannot_be_opened_when_checkpoints_are_written_then_what_they_said_of_it_stays(
    tmp_path: Path,
) -> None:
    """Or records that were deleted by request would be there again when it is mended."""
    data, logs = a_directory_with_logs(tmp_path)
    logs[ORDERS].move_log_start(5)
    data.close(logs, {ORDERS: 10})
    metadata = tmp_path / "orders-0" / "partition.metadata"
    whole = metadata.read_text()
    metadata.write_text("version: 0\ntopic_id: nonsense\n")
    broken, others = open_all(tmp_path)
    broken.write(broken.checkpoint_of(others, {}))
    broken.close(others, {})
    metadata.write_text(whole)

    again, opened = open_all(tmp_path)

    assert opened[ORDERS].log_start_offset == 5
    assert again.high_watermarks[ORDERS] == 10


def test_given_a_log_that_cannot_be_opened_when_it_is_deleted_then_its_name_is_free(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    logs[ORDERS].move_log_start(5)
    data.close(logs, {ORDERS: 10})
    (tmp_path / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: nonsense\n")
    again, others = open_all(tmp_path)

    again.set_deleted([ORDERS])

    assert not again.failed
    assert again.close(others, {})
    _, opened = open_all(tmp_path)
    assert opened.keys() == {PAYMENTS}
    assert "orders" not in (tmp_path / checkpoints.LOG_STARTS).read_text()


def test_given_a_partition_without_its_metadata_file_when_started_then_it_is_claimed_without_an_id(
    tmp_path: Path,
) -> None:
    """A power cut right after the creation; the file is on disk with the first flush."""
    data, logs = a_directory_with_logs(tmp_path)
    data.close(logs, {})
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"")
    asked: dict[TopicPartition, TopicId | None] = {}

    def note(tp: TopicPartition, topic_id: TopicId | None) -> LogConfig:
        asked[tp] = topic_id
        return SMALL

    open_all(tmp_path, note)

    assert asked == {ORDERS: None, PAYMENTS: TOPIC_ID}


# Checkpoints


def test_given_a_checkpoint_that_nobody_waits_for_any_more_when_another_is_written_then_both_are_whole(
    tmp_path: Path,
) -> None:
    """A stop cancels whoever waits for a thread, and the thread goes on."""
    data, _ = a_directory_with_logs(tmp_path)

    def write(base: int) -> None:
        for offset in range(base, base + 50):
            data.write(Checkpoint({ORDERS: offset}, {}, {ORDERS: offset}, {}))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (0, 1_000)))

    assert checkpoints.read_offsets(f"{tmp_path}/{checkpoints.RECOVERY_POINTS}")[ORDERS] in (49, 1_049)
    data.release()


def test_given_checkpoints_when_a_crash_follows_then_recovery_starts_at_the_recovery_point(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    flush(logs[ORDERS])
    data.write(data.checkpoint_of(logs, {ORDERS: 10}))
    append(logs[ORDERS], a_batch())
    data.release()

    _, opened = open_all(tmp_path)

    report = opened[ORDERS].recovery_report
    assert report is not None
    assert (report.recovery_point, opened[ORDERS].log_end_offset) == (10, 11)
    assert opened[ORDERS].flushed_offset == 10


def test_given_a_truncated_log_when_checkpoints_say_more_of_it_then_that_is_known_until_they_are_written(
    tmp_path: Path,
) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    flush(logs[ORDERS])
    data.write(data.checkpoint_of(logs, {}))

    logs[ORDERS].truncate_to(4, NOW_MS)
    logs[PAYMENTS].truncate_to(4, NOW_MS)

    assert data.vouches_beyond(ORDERS, logs[ORDERS].log_end_offset)
    assert not data.vouches_beyond(PAYMENTS, logs[PAYMENTS].log_end_offset)
    data.write(data.checkpoint_of(logs, {}))
    assert not data.vouches_beyond(ORDERS, logs[ORDERS].log_end_offset)


def test_given_a_moved_log_start_when_restarted_then_it_is_where_it_was(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    logs[ORDERS].move_log_start(7)
    data.write(data.checkpoint_of(logs, {}))
    data.release()

    _, opened = open_all(tmp_path)

    assert opened[ORDERS].log_start_offset == 7
    assert checkpoints.read_offsets(f"{tmp_path}/{checkpoints.LOG_STARTS}") == {ORDERS: 7}


def test_given_a_damaged_checkpoint_when_started_then_everything_is_checked(tmp_path: Path) -> None:
    data, logs = a_directory_with_logs(tmp_path)
    flush(logs[ORDERS])
    data.write(data.checkpoint_of(logs, {}))
    data.release()
    (tmp_path / checkpoints.RECOVERY_POINTS).write_text("0\n9\norders 0 10\n")

    _, opened = open_all(tmp_path)

    assert opened[ORDERS].log_end_offset == 10
    report = opened[ORDERS].recovery_report
    assert report is not None
    assert report.recovery_point == 0


def test_given_checkpoint_files_when_written_then_they_are_kafkas_text(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    checkpoints.write_offsets(path, {PAYMENTS: 5, ORDERS: 7})
    assert Path(path).read_text() == "0\n2\norders 0 7\npay-ments.eu 12 5\n"
    checkpoints.replace_epochs(path, [EpochEntry(0, 0), EpochEntry(3, 17)])
    assert Path(path).read_text() == "0\n2\n0 0\n3 17\n"
    checkpoints.place_partition_metadata(str(tmp_path), TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    checkpoints.write_clean_shutdown(str(tmp_path), 5)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": "0", "broker_epoch": "5"}


@pytest.mark.parametrize("text", ["", "0", "0\n1\n", "1\n0\n", "0\n1\norders zero 5\n", "0\n1\norders 0 5\nx 0 1\n"])
def test_given_text_that_is_no_checkpoint_when_read_then_it_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_text(text)

    with pytest.raises(checkpoints.BadCheckpoint):
        checkpoints.read_offsets(str(path))


def test_given_a_write_that_dies_half_way_when_read_then_the_old_content_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """traps B7: another name, flushed, renamed, directory flushed."""
    path = str(tmp_path / "c")
    checkpoints.write_offsets(path, {ORDERS: 1})

    def dies(_from: str, _to: str) -> None:
        raise OSError

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "rename", dies)
        checkpoints.write_offsets(path, {ORDERS: 2})

    assert checkpoints.read_offsets(path) == {ORDERS: 1}


def test_given_settings_of_a_topic_when_a_log_is_configured_then_it_takes_what_it_uses() -> None:
    settings = type(
        "Settings",
        (),
        {
            "segment_bytes": 1,
            "segment_ms": 2,
            "segment_index_bytes": 3,
            "index_interval_bytes": 4,
            "retention_ms": 5,
            "retention_bytes": 6,
            "file_delete_delay_ms": 7,
            "cleanup_policy": ("compact",),
            "min_cleanable_dirty_ratio": 0.25,
            "min_compaction_lag_ms": 8,
            "max_compaction_lag_ms": 9,
            "delete_retention_ms": 10,
        },
    )()

    assert LogConfig.of(settings) == LogConfig(
        1, 2, 3, 4, 5, 6, 7, is_compacted=True, is_deleted_by_retention=False,
        min_cleanable_dirty_ratio=0.25, min_compaction_lag_ms=8, max_compaction_lag_ms=9, delete_retention_ms=10,
    )  # fmt: skip


@pytest.mark.parametrize(("policy", "segment_ms"), [(("compact",), 5), (("delete",), 700)])
def test_given_a_lag_that_may_not_be_exceeded_when_a_log_is_configured_then_segments_are_closed_in_time(
    policy: tuple[str, ...], segment_ms: int
) -> None:
    broker = BrokerConfig(())
    overrides = {"cleanup.policy": ",".join(policy), "segment.ms": "700", "max.compaction.lag.ms": "5"}

    assert LogConfig.of(topic_config(overrides, broker)).segment_ms == segment_ms


def test_given_a_compacted_topic_when_retention_runs_then_age_deletes_nothing(tmp_path: Path) -> None:
    log = Log.open(
        str(tmp_path / "t-0"), config(retention_ms=1, is_deleted_by_retention=False, segment_bytes=200), now_ms=NOW_MS
    )
    for _ in range(6):
        append(log, a_batch(value=bytes(50)))

    assert log.plan_retention(log.log_end_offset, NOW_MS * 2) is None
    assert len(records(log)) == 6
