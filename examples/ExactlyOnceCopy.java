import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Exactly once, in Java: copies a topic to another until it is stopped, and says what it commits. What exactly_once.py shows with
 * confluent-kafka; why it holds is told there.
 *
 * <pre>
 *     scripts/fetch_jars.sh
 *     java -cp '.jars/lib/*' examples/ExactlyOnceCopy.java --source TOPIC --target TOPIC
 *         [--bootstrap-server HOST:PORT] [--transactional-id NAME] [--group NAME] [--transaction-size RECORDS]
 *         [--session-timeout-ms MS] [--transaction-timeout-ms MS] [--abort-ratio RATIO [--seed NUMBER]]
 * </pre>
 *
 * It ends with an error when it cannot go on: start it again then, that loses nothing.
 */
public final class ExactlyOnceCopy {
    private final String target;
    private final double abortRatio;
    private final Random luck;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private volatile boolean stopped;

    private ExactlyOnceCopy(Map<String, String> options) {
        target = options.get("target");
        abortRatio = Double.parseDouble(options.get("abort-ratio"));
        luck = options.containsKey("seed") ? new Random(Long.parseLong(options.get("seed"))) : new Random();
        ByteArraySerializer serializer = new ByteArraySerializer();
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        producer = new KafkaProducer<>(producerConfig(options), serializer, serializer);
        consumer = new KafkaConsumer<>(consumerConfig(options), deserializer, deserializer);
        consumer.subscribe(List.of(options.get("source")));
    }

    public static void main(String[] arguments) throws InterruptedException {
        ExactlyOnceCopy copy = new ExactlyOnceCopy(parse(arguments));
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> copy.stop(ended)));
        try {
            copy.run();
        } catch (KafkaException failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        } finally {
            ended.countDown();
        }
    }

    private static Map<String, String> parse(String[] arguments) {
        Map<String, String> options = new HashMap<>(Map.of(
            "bootstrap-server", "127.0.0.1:9092",
            "transactional-id", "copier-1",
            "group", "copiers",
            "transaction-size", "750",
            "session-timeout-ms", "45000",
            "transaction-timeout-ms", "60000",
            "abort-ratio", "0"));
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            options.put(arguments[at].replaceFirst("^--", ""), arguments[at + 1]);
        }
        if (arguments.length % 2 != 0 || !options.containsKey("source") || !options.containsKey("target")) {
            throw new IllegalArgumentException("--source and --target are needed, and a value for each option");
        }
        return options;
    }

    private static Properties producerConfig(Map<String, String> options) {
        Properties config = new Properties();
        config.put("bootstrap.servers", options.get("bootstrap-server"));
        config.put("transactional.id", options.get("transactional-id"));
        config.put("transaction.timeout.ms", options.get("transaction-timeout-ms"));
        return config;
    }

    private static Properties consumerConfig(Map<String, String> options) {
        Properties config = new Properties();
        config.put("bootstrap.servers", options.get("bootstrap-server"));
        config.put("group.id", options.get("group"));
        // With a name of its own a copier that is started again gets its partitions back at once.
        config.put("group.instance.id", options.get("transactional-id"));
        config.put("session.timeout.ms", options.get("session-timeout-ms"));
        config.put("heartbeat.interval.ms", String.valueOf(Integer.parseInt(options.get("session-timeout-ms")) / 3));
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", "false"); // positions are committed with the transaction, and in no other way
        config.put("auto.offset.reset", "earliest");
        config.put("max.poll.records", options.get("transaction-size"));
        return config;
    }

    private void run() {
        producer.initTransactions();
        while (!stopped) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
            if (!records.isEmpty()) {
                copy(records);
            }
        }
        consumer.close();
        producer.close();
    }

    /** One transaction. What was not committed is read again. */
    private void copy(ConsumerRecords<byte[], byte[]> records) {
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                // The same partition, so that what was in order there is in order here.
                producer.send(new ProducerRecord<>(target, record.partition(), record.key(), transform(record.value())));
                positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            // With the group's metadata the broker knows whether we still are who has these partitions.
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            if (luck.nextDouble() < abortRatio) {
                abort(records);
            } else {
                producer.commitTransaction();
                System.out.println("committed " + records.count());
            }
        } catch (ProducerFencedException | TimeoutException failure) {
            throw failure; // fenced, or of unknown outcome: whoever is started next ends it, and goes on
        } catch (KafkaException failure) {
            abort(records);
        }
    }

    /** Whatever an application makes of a record. Here: a copy. */
    private static byte[] transform(byte[] value) {
        return value;
    }

    private void abort(ConsumerRecords<byte[], byte[]> records) {
        producer.abortTransaction();
        for (TopicPartition partition : records.partitions()) {
            consumer.seek(partition, records.records(partition).get(0).offset());
        }
        System.out.println("aborted " + records.count());
    }

    private void stop(CountDownLatch ended) {
        stopped = true;
        try {
            ended.await(20, TimeUnit.SECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
