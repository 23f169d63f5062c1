import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Producing, and consuming by assignment. */
final class DataCommands {
    private static final long CONSUME_DEADLINE_S = 20;

    private DataCommands() { }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("produce", DataCommands::produce);
        commands.put("consume", DataCommands::consume);
        commands.put("offsets_for_times", DataCommands::offsetsForTimes);
        commands.put("bounds", DataCommands::bounds);
    }

    private static JsonNode produce(JsonNode arguments) throws Exception {
        String topic = arguments.get("topic").asText();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        ArrayNode answer = Driver.JSON.createArrayNode();
        ByteArraySerializer raw = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Driver.clientConfig(arguments), raw, raw)) {
            for (JsonNode record : arguments.get("records")) {
                sent.add(producer.send(producerRecord(topic, record)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata = future.get(20, TimeUnit.SECONDS);
                answer.addObject()
                    .put("partition", metadata.partition())
                    .put("offset", metadata.offset())
                    .put("timestamp", metadata.timestamp());
            }
        }
        return answer;
    }

    private static ProducerRecord<byte[], byte[]> producerRecord(String topic, JsonNode record) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.path("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), Driver.bytesOf(header.get(1))));
        }
        Integer partition = record.hasNonNull("partition") ? record.get("partition").asInt() : null;
        Long timestamp = record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null;
        byte[] key = Driver.bytesOf(record.get("key"));
        byte[] value = Driver.bytesOf(record.get("value"));
        return new ProducerRecord<>(topic, partition, timestamp, key, value, headers);
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode arguments) {
        Properties config = Driver.clientConfig(arguments);
        config.put("enable.auto.commit", "false");
        config.putIfAbsent("auto.offset.reset", "none");
        ByteArrayDeserializer raw = new ByteArrayDeserializer();
        return new KafkaConsumer<>(config, raw, raw);
    }

    /** Reads `count` records from `positions` (partition to offset; a negative offset means from the beginning). */
    private static JsonNode consume(JsonNode arguments) throws Exception {
        int count = arguments.get("count").asInt();
        ArrayNode answer = Driver.JSON.createArrayNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            Map<TopicPartition, Long> positions = longsByPartition(arguments, "positions");
            consumer.assign(positions.keySet());
            positions.forEach((partition, offset) -> {
                if (offset < 0) {
                    consumer.seekToBeginning(List.of(partition));
                } else {
                    consumer.seek(partition, offset);
                }
            });
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(CONSUME_DEADLINE_S);
            while (answer.size() < count) {
                if (System.nanoTime() > deadline) {
                    throw new TimeoutException("only " + answer.size() + " of " + count + " records came");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    answer.add(recordNode(record));
                }
            }
        }
        return answer;
    }

    private static ObjectNode recordNode(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = Driver.JSON.createObjectNode()
            .put("partition", record.partition())
            .put("offset", record.offset())
            .put("timestamp", record.timestamp())
            .put("timestamp_type", record.timestampType().name)
            .put("leader_epoch", record.leaderEpoch().orElse(-1))
            .put("key", Driver.textOf(record.key()))
            .put("value", Driver.textOf(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(Driver.textOf(header.value()));
        }
        return node;
    }

    private static JsonNode offsetsForTimes(JsonNode arguments) {
        ObjectNode answer = Driver.JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(longsByPartition(arguments, "times"));
            found.forEach((partition, offset) -> {
                if (offset == null) {
                    answer.putNull(String.valueOf(partition.partition()));
                } else {
                    answer.putObject(String.valueOf(partition.partition()))
                        .put("offset", offset.offset())
                        .put("timestamp", offset.timestamp());
                }
            });
        }
        return answer;
    }

    private static JsonNode bounds(JsonNode arguments) {
        TopicPartition partition = new TopicPartition(arguments.get("topic").asText(), arguments.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments)) {
            return Driver.JSON.createObjectNode()
                .put("beginning", consumer.beginningOffsets(List.of(partition)).get(partition))
                .put("end", consumer.endOffsets(List.of(partition)).get(partition));
        }
    }

    private static Map<TopicPartition, Long> longsByPartition(JsonNode arguments, String field) {
        String topic = arguments.get("topic").asText();
        Map<TopicPartition, Long> values = new HashMap<>();
        arguments.get(field).properties().forEach(
            entry -> values.put(new TopicPartition(topic, Integer.parseInt(entry.getKey())), entry.getValue().asLong()));
        return values;
    }
}
