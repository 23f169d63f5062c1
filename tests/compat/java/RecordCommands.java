import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.server.common.ApiMessageAndVersion;

import java.nio.ByteBuffer;
import java.util.Map;

/** Records of __consumer_offsets, between bytes and JSON, as Kafka's own coordinator reads and writes them. */
final class RecordCommands {
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();

    private RecordCommands() { }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("read_group_record", RecordCommands::read);
        commands.put("write_group_record", RecordCommands::write);
    }

    private static JsonNode read(JsonNode arguments) {
        byte[] value = Driver.bytesOf(arguments.get("value"));
        CoordinatorRecord record = SERDE.deserialize(
            ByteBuffer.wrap(Driver.bytesOf(arguments.get("key"))), value == null ? null : ByteBuffer.wrap(value));
        ObjectNode answer = Driver.JSON.createObjectNode().put("type", record.key().apiKey());
        answer.set("key", CoordinatorRecordJsonConverters.writeRecordKeyAsJson(record.key()));
        if (record.value() != null) {
            short version = record.value().version();
            answer.put("version", version);
            answer.set("value", CoordinatorRecordJsonConverters.writeRecordValueAsJson(record.value().message(), version));
        }
        return answer;
    }

    private static JsonNode write(JsonNode arguments) {
        short type = (short) arguments.get("type").asInt();
        ApiMessage key = CoordinatorRecordJsonConverters.readRecordKeyFromJson(arguments.get("key"), type);
        CoordinatorRecord record = CoordinatorRecord.tombstone(key);
        if (!arguments.get("value").isNull()) {
            short version = (short) arguments.get("version").asInt();
            ApiMessage value = CoordinatorRecordJsonConverters.readRecordValueFromJson(arguments.get("value"), type, version);
            record = CoordinatorRecord.record(key, new ApiMessageAndVersion(value, version));
        }
        return Driver.JSON.createObjectNode()
            .put("key", Driver.textOf(SERDE.serializeKey(record)))
            .put("value", Driver.textOf(SERDE.serializeValue(record)));
    }
}
