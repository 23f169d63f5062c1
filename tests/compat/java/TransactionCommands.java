import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import kafka.coordinator.transaction.TransactionLog;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.transaction.TransactionCoordinatorRecordSerde;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.TransactionVersion;

import java.nio.ByteBuffer;
import java.util.Map;

/** Records of __transaction_state, and the markers that end transactions, as Kafka's own coordinator reads and writes them. */
final class TransactionCommands {
    private static final TransactionCoordinatorRecordSerde SERDE = new TransactionCoordinatorRecordSerde();
    private static final short RECORD_TYPE = 0;

    private TransactionCommands() { }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("write_transaction_record", TransactionCommands::write);
        commands.put("read_transaction_record", TransactionCommands::read);
        commands.put("write_end_marker", TransactionCommands::writeEndMarker);
        commands.put("read_end_marker", TransactionCommands::readEndMarker);
    }

    private static JsonNode write(JsonNode arguments) {
        ApiMessage key = CoordinatorRecordJsonConverters.readRecordKeyFromJson(arguments.get("key"), RECORD_TYPE);
        CoordinatorRecord record = CoordinatorRecord.tombstone(key);
        if (!arguments.get("value").isNull()) {
            short version = (short) arguments.get("version").asInt();
            ApiMessage value = CoordinatorRecordJsonConverters.readRecordValueFromJson(arguments.get("value"), RECORD_TYPE, version);
            record = CoordinatorRecord.record(key, new ApiMessageAndVersion(value, version));
        }
        return Driver.JSON.createObjectNode()
            .put("key", Driver.textOf(SERDE.serializeKey(record)))
            .put("value", Driver.textOf(SERDE.serializeValue(record)));
    }

    /** What the coordinator makes of a record when it loads its partition, and the value it would write of it again. */
    private static JsonNode read(JsonNode arguments) {
        byte[] value = Driver.bytesOf(arguments.get("value"));
        String id = TransactionLog.readTxnRecordKey(ByteBuffer.wrap(Driver.bytesOf(arguments.get("key")))).toOption().get();
        ObjectNode answer = Driver.JSON.createObjectNode().put("transactional_id", id);
        if (value == null) {
            return answer;
        }
        TransactionMetadata read = TransactionLog.readTxnRecordValue(id, ByteBuffer.wrap(value)).get();
        ArrayNode partitions = answer.putArray("partitions");
        read.topicPartitions().forEach(each -> partitions.addArray().add(each.topic()).add(each.partition()));
        return answer
            .put("producer_id", read.producerId())
            .put("previous_producer_id", read.prevProducerId())
            .put("producer_epoch", read.producerEpoch())
            .put("timeout_ms", read.txnTimeoutMs())
            .put("status", read.state().stateName())
            .put("last_update_ms", read.txnLastUpdateTimestamp())
            .put("start_ms", read.txnStartTimestamp())
            .put("client_transaction_version", read.clientTransactionVersion().featureLevel())
            .put("again", Driver.textOf(TransactionLog.valueToBytes(read.prepareNoTransit(), TransactionVersion.TV_2)));
    }

    private static JsonNode writeEndMarker(JsonNode arguments) {
        ControlRecordType type = arguments.get("is_commit").asBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        MemoryRecords records = MemoryRecords.withEndTransactionMarker(
            arguments.get("timestamp_ms").asLong(), arguments.get("producer_id").asLong(),
            (short) arguments.get("producer_epoch").asInt(),
            new EndTransactionMarker(type, arguments.get("coordinator_epoch").asInt()));
        byte[] bytes = new byte[records.sizeInBytes()];
        records.buffer().get(bytes);
        return Driver.JSON.getNodeFactory().textNode(Driver.textOf(bytes));
    }

    private static JsonNode readEndMarker(JsonNode arguments) {
        ByteBuffer bytes = ByteBuffer.wrap(Driver.bytesOf(arguments.get("batch")));
        RecordBatch batch = MemoryRecords.readableRecords(bytes).batches().iterator().next();
        batch.ensureValid();
        EndTransactionMarker marker = EndTransactionMarker.deserialize(batch.iterator().next());
        return Driver.JSON.createObjectNode()
            .put("producer_id", batch.producerId())
            .put("producer_epoch", batch.producerEpoch())
            .put("is_commit", marker.controlType() == ControlRecordType.COMMIT)
            .put("coordinator_epoch", marker.coordinatorEpoch());
    }
}
