import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.ArrayList;
import java.util.Base64;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Debezium's embedded engine: each change goes to Kafka if the properties name `bootstrap.servers`, else to standard
 * output, as a line of topic, key and value (each in base64, or '-' for null). Run as `java -cp 'jars/*' Engine.java
 * engine.properties`; it ends with its process.
 */
public class Engine {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(arguments[0]));
        KafkaProducer<String, String> producer = producer(properties);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    System.err.println("the engine has ended: " + message);
                    if (error != null) error.printStackTrace();
                    System.exit(success ? 0 : 1);
                })
                .notifying((records, committer) -> {
                    if (producer == null) print(records);
                    else send(producer, records);
                    for (ChangeEvent<String, String> record : records) committer.markProcessed(record);
                    committer.markBatchFinished();
                })
                .build();
        Executors.newSingleThreadExecutor().execute(engine);
    }

    private static KafkaProducer<String, String> producer(Properties properties) {
        String servers = properties.getProperty("bootstrap.servers");
        if (servers == null) return null;
        Properties own = new Properties();
        own.put("bootstrap.servers", servers);
        own.put("acks", "all");
        return new KafkaProducer<>(own, new StringSerializer(), new StringSerializer());
    }

    /** As a source connector of Kafka Connect does: by the key's partition, and durable before it is marked. */
    private static void send(KafkaProducer<String, String> producer, List<ChangeEvent<String, String>> records) {
        List<Future<?>> sent = new ArrayList<>();
        for (ChangeEvent<String, String> record : records)
            sent.add(producer.send(new ProducerRecord<>(record.destination(), record.key(), record.value())));
        try {
            for (Future<?> each : sent) each.get(300, TimeUnit.SECONDS);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    private static void print(List<ChangeEvent<String, String>> records) {
        for (ChangeEvent<String, String> record : records)
            System.out.println(record.destination() + " " + shown(record.key()) + " " + shown(record.value()));
        System.out.flush();
    }

    private static String shown(String text) {
        return text == null ? "-" : Base64.getEncoder().encodeToString(text.getBytes(java.nio.charset.StandardCharsets.UTF_8));
    }
}
