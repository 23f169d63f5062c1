import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Administration of topics, configurations and the cluster. */
final class AdminCommands {
    private AdminCommands() { }

    private interface AdminCommand {
        JsonNode run(Admin admin, JsonNode arguments) throws Exception;
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("create_topic", withAdmin(AdminCommands::createTopic));
        commands.put("list_topics", withAdmin(AdminCommands::listTopics));
        commands.put("describe_topic", withAdmin(AdminCommands::describeTopic));
        commands.put("describe_configs", withAdmin(AdminCommands::describeConfigs));
        commands.put("alter_configs", withAdmin(AdminCommands::alterConfigs));
        commands.put("create_partitions", withAdmin(AdminCommands::createPartitions));
        commands.put("delete_records", withAdmin(AdminCommands::deleteRecords));
        commands.put("delete_topic", withAdmin(AdminCommands::deleteTopic));
        commands.put("describe_cluster", withAdmin(AdminCommands::describeCluster));
        commands.put("describe_log_dirs", withAdmin(AdminCommands::describeLogDirs));
        commands.put("list_offsets", withAdmin(AdminCommands::listOffsets));
    }

    private static Driver.Command withAdmin(AdminCommand command) {
        return arguments -> {
            try (Admin admin = Admin.create(Driver.clientConfig(arguments))) {
                return command.run(admin, arguments);
            }
        };
    }

    private static JsonNode createTopic(Admin admin, JsonNode arguments) throws Exception {
        Map<String, String> configs = new HashMap<>();
        arguments.path("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        Optional<Integer> partitions = Optional.of(arguments.get("partitions").asInt());
        NewTopic topic = new NewTopic(topicOf(arguments), partitions, Optional.empty()).configs(configs);
        var result = admin.createTopics(List.of(topic));
        result.all().get();
        return Driver.JSON.createObjectNode()
            .put("topic_id", result.topicId(topic.name()).get().toString())
            .put("partitions", result.numPartitions(topic.name()).get())
            .put("replication_factor", result.replicationFactor(topic.name()).get());
    }

    private static JsonNode listTopics(Admin admin, JsonNode arguments) throws Exception {
        return Driver.JSON.valueToTree(admin.listTopics().names().get());
    }

    private static JsonNode describeTopic(Admin admin, JsonNode arguments) throws Exception {
        TopicDescription topic = admin.describeTopics(List.of(topicOf(arguments))).allTopicNames().get().get(topicOf(arguments));
        ObjectNode answer = Driver.JSON.createObjectNode()
            .put("name", topic.name())
            .put("topic_id", topic.topicId().toString())
            .put("internal", topic.isInternal());
        ArrayNode partitions = answer.putArray("partitions");
        for (TopicPartitionInfo partition : topic.partitions()) {
            ObjectNode node = partitions.addObject()
                .put("partition", partition.partition())
                .put("leader", partition.leader().id());
            node.set("replicas", Driver.JSON.valueToTree(ids(partition.replicas())));
            node.set("isr", Driver.JSON.valueToTree(ids(partition.isr())));
        }
        return answer;
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).toList();
    }

    private static JsonNode describeConfigs(Admin admin, JsonNode arguments) throws Exception {
        ConfigResource resource = resourceOf(arguments);
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        ObjectNode answer = Driver.JSON.createObjectNode();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource), options).all().get().get(resource).entries()) {
            answer.putObject(entry.name())
                .put("value", entry.value())
                .put("source", entry.source().name())
                .put("type", entry.type().name())
                .put("read_only", entry.isReadOnly())
                .put("sensitive", entry.isSensitive())
                .put("synonyms", entry.synonyms().size());
        }
        return answer;
    }

    /** Incremental: a text value sets a key, null takes it back to its default. */
    private static JsonNode alterConfigs(Admin admin, JsonNode arguments) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        arguments.get("configs").properties().forEach(entry -> {
            boolean isReset = entry.getValue().isNull();
            String value = isReset ? null : entry.getValue().asText();
            AlterConfigOp.OpType change = isReset ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
            changes.add(new AlterConfigOp(new ConfigEntry(entry.getKey(), value), change));
        });
        admin.incrementalAlterConfigs(Map.of(resourceOf(arguments), changes)).all().get();
        return Driver.JSON.nullNode();
    }

    private static JsonNode createPartitions(Admin admin, JsonNode arguments) throws Exception {
        NewPartitions partitions = NewPartitions.increaseTo(arguments.get("partitions").asInt());
        admin.createPartitions(Map.of(topicOf(arguments), partitions)).all().get();
        return Driver.JSON.nullNode();
    }

    private static JsonNode deleteRecords(Admin admin, JsonNode arguments) throws Exception {
        TopicPartition partition = partitionOf(arguments);
        RecordsToDelete before = RecordsToDelete.beforeOffset(arguments.get("before_offset").asLong());
        long lowWatermark = admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get().lowWatermark();
        return Driver.JSON.createObjectNode().put("low_watermark", lowWatermark);
    }

    private static JsonNode deleteTopic(Admin admin, JsonNode arguments) throws Exception {
        admin.deleteTopics(List.of(topicOf(arguments))).all().get();
        return Driver.JSON.nullNode();
    }

    private static JsonNode describeCluster(Admin admin, JsonNode arguments) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        ObjectNode answer = Driver.JSON.createObjectNode()
            .put("cluster_id", cluster.clusterId().get())
            .put("controller", cluster.controller().get().id());
        ArrayNode nodes = answer.putArray("nodes");
        for (Node node : cluster.nodes().get()) {
            nodes.addObject().put("id", node.id()).put("host", node.host()).put("port", node.port());
        }
        return answer;
    }

    private static JsonNode describeLogDirs(Admin admin, JsonNode arguments) throws Exception {
        int broker = arguments.get("broker").asInt();
        ArrayNode answer = Driver.JSON.createArrayNode();
        Map<String, LogDirDescription> directories = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
        directories.forEach((path, directory) -> {
            ObjectNode node = answer.addObject()
                .put("path", path)
                .put("error", directory.error() == null ? null : directory.error().toString())
                .put("total_bytes", directory.totalBytes().orElse(-1))
                .put("usable_bytes", directory.usableBytes().orElse(-1));
            ObjectNode sizes = node.putObject("sizes");
            directory.replicaInfos().forEach((partition, replica) -> sizes.put(partition.toString(), replica.size()));
        });
        return answer;
    }

    private static JsonNode listOffsets(Admin admin, JsonNode arguments) throws Exception {
        TopicPartition partition = partitionOf(arguments);
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, offsetSpec(arguments))).partitionResult(partition).get();
        return Driver.JSON.createObjectNode()
            .put("offset", found.offset())
            .put("timestamp", found.timestamp())
            .put("leader_epoch", found.leaderEpoch().orElse(-1));
    }

    private static OffsetSpec offsetSpec(JsonNode arguments) {
        return switch (arguments.get("spec").asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            case "earliest_local" -> OffsetSpec.earliestLocal();
            case "latest_tiered" -> OffsetSpec.latestTiered();
            default -> OffsetSpec.forTimestamp(arguments.get("spec").asLong());
        };
    }

    private static String topicOf(JsonNode arguments) {
        return arguments.get("topic").asText();
    }

    private static TopicPartition partitionOf(JsonNode arguments) {
        return new TopicPartition(topicOf(arguments), arguments.get("partition").asInt());
    }

    private static ConfigResource resourceOf(JsonNode arguments) {
        if (arguments.has("broker")) {
            return new ConfigResource(ConfigResource.Type.BROKER, arguments.get("broker").asText());
        }
        return new ConfigResource(ConfigResource.Type.TOPIC, topicOf(arguments));
    }
}
