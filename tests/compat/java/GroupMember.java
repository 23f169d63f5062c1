import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.errors.StaleMemberEpochException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.regex.Pattern;

/** A member of a group in a process of its own: what tests/compat/clients/group_member.py is, in the same words. */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<String, TopicPartition> owned = new TreeMap<>();
    private final Object control = new Object();
    private boolean held;
    private boolean leaving;

    private GroupMember(JsonNode options) {
        ByteArrayDeserializer raw = new ByteArrayDeserializer();
        consumer = new KafkaConsumer<>(config(options), raw, raw);
        subscribe(options);
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode options = Driver.JSON.readTree(arguments[0]);
        try {
            GroupMember member = new GroupMember(options);
            Thread reader = new Thread(member::obey);
            reader.setDaemon(true);
            reader.start();
            say("started", Driver.JSON.createObjectNode());
            member.run();
            member.consumer.close();
            say("left", Driver.JSON.createObjectNode());
        } catch (Exception failure) {
            String error = failure.getClass().getSimpleName() + ": " + failure.getMessage();
            say("failed", Driver.JSON.createObjectNode().put("error", error));
            System.exit(1);
        }
    }

    private static Properties config(JsonNode options) {
        Properties config = Driver.clientConfig(options);
        boolean classic = options.get("protocol").asText().equals("classic");
        config.put("group.id", options.get("group").asText());
        config.put("group.protocol", options.get("protocol").asText());
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("fetch.max.wait.ms", "100");
        config.put("max.poll.interval.ms", "60000");
        config.put("max.poll.records", "50");
        config.put("metadata.max.age.ms", "1000");
        List<String> assignors = new ArrayList<>();
        options.get("assignors").forEach(name -> assignors.add(classic ? ASSIGNORS.get(name.asText()) : name.asText()));
        if (classic) {
            config.put("session.timeout.ms", options.get("session_ms").asText());
            config.put("heartbeat.interval.ms", options.get("heartbeat_ms").asText());
            config.put("partition.assignment.strategy", String.join(",", assignors));
        } else if (!assignors.isEmpty()) {
            config.put("group.remote.assignor", assignors.get(0));
        }
        if (options.hasNonNull("instance")) {
            config.put("group.instance.id", options.get("instance").asText());
        }
        return config;
    }

    /** A name that begins with ^ is a pattern: matched by the broker in the new protocol, by the client in the old. */
    private void subscribe(JsonNode options) {
        List<String> topics = new ArrayList<>();
        options.get("topics").forEach(topic -> topics.add(topic.asText()));
        if (!topics.get(0).startsWith("^")) {
            consumer.subscribe(topics, this);
        } else if (options.get("protocol").asText().equals("classic")) {
            consumer.subscribe(Pattern.compile(topics.get(0)), this);
        } else {
            consumer.subscribe(new SubscriptionPattern(topics.get(0)), this);
        }
    }

    // Ownership

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.put(partition.toString(), partition));
        sayWhatIsOwned("assigned");
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.remove(partition.toString()));
        sayWhatIsOwned("revoked");
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.remove(partition.toString()));
        sayWhatIsOwned("lost");
    }

    private void sayWhatIsOwned(String event) {
        ObjectNode fields = Driver.JSON.createObjectNode()
            .put("generation", consumer.groupMetadata().generationId())
            .put("id", consumer.groupMetadata().memberId());
        ArrayNode partitions = fields.putArray("owned");
        owned.values().forEach(partition -> partitions.addArray().add(partition.topic()).add(partition.partition()));
        say(event, fields);
    }

    // Work

    private void run() throws InterruptedException {
        while (!isLeaving()) {
            ConsumerRecords<byte[], byte[]> records = poll();
            if (!records.isEmpty()) {
                process(records);
            }
        }
    }

    /** A member that was thrown out may find a partition gone in the middle of a poll, and polls again. */
    private ConsumerRecords<byte[], byte[]> poll() {
        try {
            return consumer.poll(Duration.ofMillis(100));
        } catch (IllegalStateException | UnknownMemberIdException | StaleMemberEpochException thrownOut) {
            say("stumbled", Driver.JSON.createObjectNode().put("error", thrownOut.getMessage()));
            return ConsumerRecords.empty();
        }
    }

    private void process(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        ObjectNode fields = Driver.JSON.createObjectNode();
        ArrayNode processed = fields.putArray("records");
        for (ConsumerRecord<byte[], byte[]> record : records) {
            processed.addArray().add(record.topic()).add(record.partition()).add(record.offset());
            offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        say("processed", fields);
        holdIfWanted();
        commit(offsets);
    }

    private void commit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        ObjectNode fields = Driver.JSON.createObjectNode();
        try {
            consumer.commitSync(offsets);
        } catch (KafkaException failure) {
            say("refused", fields.put("error", failure.getClass().getSimpleName()));
            return;
        }
        ArrayNode committed = fields.putArray("offsets");
        offsets.forEach((partition, offset) ->
            committed.addArray().add(partition.topic()).add(partition.partition()).add(offset.offset()));
        say("committed", fields);
    }

    // What the test wants

    private void obey() {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            String line = commands.readLine();
            while (line != null && !line.equals("leave")) {
                synchronized (control) {
                    held = line.equals("hold");
                    control.notifyAll();
                }
                line = commands.readLine();
            }
        } catch (IOException ended) {
            // The test is over.
        }
        synchronized (control) {
            held = false;
            leaving = true;
            control.notifyAll();
        }
    }

    private boolean isLeaving() {
        synchronized (control) {
            return leaving;
        }
    }

    private void holdIfWanted() throws InterruptedException {
        synchronized (control) {
            if (held) {
                say("holding", Driver.JSON.createObjectNode());
            }
            while (held) {
                control.wait();
            }
        }
    }

    private static void say(String event, ObjectNode fields) {
        fields.put("event", event).put("at", System.nanoTime() / 1e9);
        try {
            OUT.write((fields + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
