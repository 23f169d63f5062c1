import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.utils.Exit;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Kafka's command-line tools, run inside this JVM: each is over in a fraction of the time that a JVM of its own takes to start. */
final class ToolCommands {
    private ToolCommands() { }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("run_tool", ToolCommands::run);
    }

    private static final class Exited extends RuntimeException {
        private static final long serialVersionUID = 1;

        private final int code;

        Exited(int code) {
            this.code = code;
        }
    }

    /** What the tool's main printed to standard output and standard error, and its exit code. */
    private static JsonNode run(JsonNode arguments) throws Exception {
        List<String> words = new ArrayList<>();
        arguments.get("arguments").forEach(word -> words.add(word.asText()));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream standardOutput = System.out;
        PrintStream standardError = System.err;
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        int code = 0;
        Exit.setExitProcedure((exitCode, message) -> {
            throw new Exited(exitCode);
        });
        System.setOut(capture);
        System.setErr(capture);
        try {
            Class<?> tool = Class.forName(arguments.get("tool").asText());
            tool.getMethod("main", String[].class).invoke(null, (Object) words.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                throw thrown;
            }
            code = ((Exited) thrown.getCause()).code;
        } finally {
            System.setOut(standardOutput);
            System.setErr(standardError);
            Exit.resetExitProcedure();
        }
        return Driver.JSON.createObjectNode().put("code", code).put("printed", printed.toString(StandardCharsets.UTF_8));
    }
}
