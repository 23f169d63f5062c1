import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.slf4j.LoggerFactory;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

/**
 * Lends Kafka's Java clients to tests written in Python: one JSON command per line on standard input, one JSON answer per line on
 * standard output, in order. A JVM takes longer to start than most tests take to run, so one serves many; every command makes and
 * closes clients of its own, but for the named ones of ProducerCommands, so nothing is carried from one test to the next.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    interface Command {
        JsonNode run(JsonNode arguments) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = new HashMap<>();

    public static void main(String[] unused) throws Exception {
        // Now, and not within a tool whose standard error is caught: logging keeps the stream that it begins with.
        LoggerFactory.getLogger(Driver.class);
        DataCommands.register(COMMANDS);
        AdminCommands.register(COMMANDS);
        RecordCommands.register(COMMANDS);
        ToolCommands.register(COMMANDS);
        TransactionCommands.register(COMMANDS);
        ProducerCommands.register(COMMANDS);
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(answer(JSON.readTree(line)));
        }
    }

    private static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        String name = request.get("command").asText();
        try {
            Command command = COMMANDS.get(name);
            if (command == null) {
                throw new IllegalArgumentException("no command " + name);
            }
            answer.set("result", command.run(request));
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            answer.put("error", cause.getClass().getSimpleName());
            answer.put("message", String.valueOf(cause.getMessage()));
        }
        return answer;
    }

    /** The bootstrap address, deadlines short enough for a test, and whatever the command's "config" says. */
    static Properties clientConfig(JsonNode arguments) {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments.get("bootstrap").asText());
        config.put("request.timeout.ms", "10000");
        config.put("default.api.timeout.ms", "20000");
        arguments.path("config").properties().forEach(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        return config;
    }

    static byte[] bytesOf(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    static String textOf(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
