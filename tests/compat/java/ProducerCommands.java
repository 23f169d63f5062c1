import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Transactional producers, which unlike all else in the driver live from one command to the next, by name: what is open, and who is
 * fenced, takes more than one command to see. And the reading that tests of transactions need.
 */
final class ProducerCommands {
    private static final long DEADLINE_S = 20;
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    private ProducerCommands() { }

    private interface ProducerCommand {
        void run(KafkaProducer<byte[], byte[]> producer, JsonNode arguments) throws Exception;
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("open_producer", ProducerCommands::open);
        commands.put("begin_transaction", withProducer((producer, arguments) -> producer.beginTransaction()));
        commands.put("send_in_transaction", withProducer(ProducerCommands::send));
        commands.put("send_offsets_to_transaction", withProducer(ProducerCommands::sendOffsets));
        commands.put("copy_in_transaction", withProducer(ProducerCommands::copy));
        commands.put("commit_transaction", withProducer((producer, arguments) -> producer.commitTransaction()));
        commands.put("abort_transaction", withProducer((producer, arguments) -> producer.abortTransaction()));
        commands.put("close_producer", ProducerCommands::close);
        commands.put("read_to_end", ProducerCommands::readToEnd);
        commands.put("committed", ProducerCommands::committed);
    }

    private static Driver.Command withProducer(ProducerCommand command) {
        return arguments -> {
            command.run(PRODUCERS.get(arguments.get("producer").asText()), arguments);
            return Driver.JSON.nullNode();
        };
    }

    private static JsonNode open(JsonNode arguments) {
        ByteArraySerializer raw = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Driver.clientConfig(arguments), raw, raw);
        PRODUCERS.put(arguments.get("producer").asText(), producer);
        producer.initTransactions();
        return Driver.JSON.nullNode();
    }

    private static JsonNode close(JsonNode arguments) {
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.remove(arguments.get("producer").asText());
        producer.close(Duration.ZERO);
        return Driver.JSON.nullNode();
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode arguments) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : arguments.get("values")) {
            int partition = arguments.get("partition").asInt();
            sent.add(producer.send(new ProducerRecord<>(arguments.get("topic").asText(), partition, null, Driver.bytesOf(value))));
        }
        producer.flush();
        for (Future<RecordMetadata> future : sent) {
            future.get(DEADLINE_S, TimeUnit.SECONDS);
        }
    }

    private static void sendOffsets(KafkaProducer<byte[], byte[]> producer, JsonNode arguments) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode row : arguments.get("offsets")) {
            TopicPartition partition = new TopicPartition(row.get(0).asText(), row.get(1).asInt());
            offsets.put(partition, new OffsetAndMetadata(row.get(2).asLong()));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(consumerConfig(arguments))) {
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        }
    }

    private static void copy(KafkaProducer<byte[], byte[]> producer, JsonNode arguments) throws Exception {
        int count = arguments.get("count").asInt();
        Properties config = consumerConfig(arguments);
        config.put("auto.offset.reset", "earliest");
        config.put("isolation.level", "read_committed");
        config.put("max.poll.records", String.valueOf(count));
        Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
        int copied = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(config)) {
            consumer.subscribe(List.of(arguments.get("source").asText()));
            long deadline = deadline();
            while (copied < count) {
                requireTime(deadline, copied + " of " + count + " records");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    producer.send(new ProducerRecord<>(arguments.get("target").asText(), record.partition(), null, record.value()));
                    after.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    copied++;
                }
            }
            producer.sendOffsetsToTransaction(after, consumer.groupMetadata());
        }
    }

    /** The values of each partition, up to the end that the isolation level of the configuration has at this moment. */
    private static JsonNode readToEnd(JsonNode arguments) throws Exception {
        ArrayNode answer = Driver.JSON.createArrayNode();
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < arguments.get("partitions").asInt(); partition++) {
            partitions.add(new TopicPartition(arguments.get("topic").asText(), partition));
            answer.addArray();
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(consumerConfig(arguments))) {
            consumer.assign(partitions);
            partitions.forEach(partition -> consumer.seek(partition, 0));
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = deadline();
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                requireTime(deadline, "no end: " + ends);
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                    ((ArrayNode) answer.get(record.partition())).add(Driver.textOf(record.value()));
                }
            }
        }
        return answer;
    }

    private static JsonNode committed(JsonNode arguments) {
        TopicPartition partition = new TopicPartition(arguments.get("topic").asText(), 0);
        Duration timeout = Duration.ofMillis(arguments.get("timeout_ms").asLong());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(consumerConfig(arguments))) {
            OffsetAndMetadata found = consumer.committed(Set.of(partition), timeout).get(partition);
            return found == null ? Driver.JSON.nullNode() : Driver.JSON.getNodeFactory().numberNode(found.offset());
        }
    }

    private static Properties consumerConfig(JsonNode arguments) {
        Properties config = Driver.clientConfig(arguments);
        config.put("enable.auto.commit", "false");
        if (arguments.has("group")) {
            config.put("group.id", arguments.get("group").asText());
        }
        return config;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties config) {
        ByteArrayDeserializer raw = new ByteArrayDeserializer();
        return new KafkaConsumer<>(config, raw, raw);
    }

    private static long deadline() {
        return System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
    }

    private static void requireTime(long deadline, String missing) throws TimeoutException {
        if (System.nanoTime() > deadline) {
            throw new TimeoutException(missing);
        }
    }
}
