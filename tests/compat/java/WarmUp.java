import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Has the classes loaded that every test needs, for the archive that scripts/fetch_jars.sh makes of them. */
final class WarmUp {
    private WarmUp() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", "127.0.0.1:1")); // where nobody listens
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
                var admin = Admin.create(config)) {
            producer.metrics();
            admin.metrics();
        }
        config.put("group.id", "nobody");
        for (String protocol : List.of("classic", "consumer")) {
            config.put("group.protocol", protocol);
            try (var consumer =
                    new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of("nothing"));
                consumer.poll(Duration.ofMillis(100));
            }
        }
        new com.fasterxml.jackson.databind.ObjectMapper().readTree("{}");
    }
}
