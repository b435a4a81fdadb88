package onceonly.kafka;

import java.io.IOException;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One producer, for one transaction or none. */
final class Output {
  private static final Pattern SECRET = Pattern.compile("password|jaas|keystore[.]key|key[.]pem");

  final String transactionalId;
  private final Map<String, String> settings;
  private final KafkaProducer<byte[], byte[]> producer;
  private final AtomicReference<Failure> first = new AtomicReference<>();
  private final AtomicLong failures = new AtomicLong();
  private final Callback report = this::report;

  Output(Job job, String transactionalId) throws IOException {
    this.transactionalId = transactionalId;
    this.settings = job.producer;
    Properties properties = new Properties();
    properties.putAll(settings);
    if (transactionalId != null) {
      properties.put("transactional.id", transactionalId);
      properties.put("transaction.timeout.ms", String.valueOf(job.transactionTimeout));
    }
    KafkaProducer<byte[], byte[]> opened = null;
    try {
      opened = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
      if (transactionalId != null) {
        opened.initTransactions();
        opened.beginTransaction();
      }
    } catch (KafkaException error) {
      if (opened != null) {
        opened.close(Duration.ZERO);
      }
      throw explain(error);
    }
    producer = opened;
  }

  void send(Record record) throws IOException {
    try {
      producer.send(
          new ProducerRecord<>(
              record.topic, record.partition, record.timestamp, record.key, record.value, headers(record)),
          report);
    } catch (KafkaException error) {
      throwFailed();
      throw explain(error);
    }
    throwFailed();
  }

  private static List<Header> headers(Record record) {
    if (record.headers.length == 0) {
      return null;
    }
    List<Header> headers = new ArrayList<>(record.headers.length);
    for (Record.Header header : record.headers) {
      headers.add(new RecordHeader(header.text(), header.value));
    }
    return headers;
  }

  /** Wait until every record is acknowledged by all in-sync replicas. */
  void flush() throws IOException {
    try {
      producer.flush();
    } catch (KafkaException error) {
      throwFailed();
      throw explain(error);
    }
    throwFailed();
  }

  /** Leave the transaction open: only a close without patience does not abort it. */
  void leave() {
    producer.close(Duration.ZERO);
  }

  /**
   * Return id and epoch of the producer, or null without a transaction.
   *
   * <p>The client tells them to nobody; Flink's FlinkKafkaInternalProducer reads them the same way.
   */
  long[] producer() throws IOException {
    if (transactionalId == null) {
      return null;
    }
    try {
      Object idAndEpoch = field(field(producer, "transactionManager"), "producerIdAndEpoch");
      return new long[] {(long) field(idAndEpoch, "producerId"), (short) field(idAndEpoch, "epoch")};
    } catch (ReflectiveOperationException error) {
      throw new IOException("this Kafka client does not tell the id of its producer", error);
    }
  }

  private static Object field(Object object, String name) throws ReflectiveOperationException {
    Field field = object.getClass().getDeclaredField(name);
    field.setAccessible(true);
    return field.get(object);
  }

  private void report(RecordMetadata record, Exception error) {
    if (error != null) {
      failures.incrementAndGet();
      first.compareAndSet(null, new Failure(error, record));
    }
  }

  private void throwFailed() throws IOException {
    Failure failure = first.get();
    if (failure != null) {
      Map<String, Object> facts = facts(failure.cause);
      facts.put("failures", failures.get());
      if (failure.record != null) {
        facts.put("topic", failure.record.topic());
        facts.put("partition", failure.record.partition());
      }
      throw new WriterError(facts);
    }
  }

  /** Return the error as facts; an interrupt, by which Spark ends a task, stays one. */
  private WriterError explain(KafkaException error) {
    if (error instanceof InterruptException) {
      throw error;
    }
    return new WriterError(facts(error));
  }

  private Map<String, Object> facts(Throwable error) {
    Throwable cause = error;
    while (cause.getCause() != null && Errors.forException(cause) == Errors.UNKNOWN_SERVER_ERROR) {
      cause = cause.getCause();
    }
    Map<String, Object> facts = new LinkedHashMap<>();
    facts.put("kind", "kafka");
    facts.put("code", Errors.forException(cause).code());
    facts.put("why", scrub(cause.getClass().getSimpleName() + ": " + cause.getMessage()));
    return facts;
  }

  /** Return the text without the secrets of the login: an error of a setting may quote it. */
  private String scrub(String text) {
    for (Map.Entry<String, String> setting : settings.entrySet()) {
      if (SECRET.matcher(setting.getKey()).find() && !setting.getValue().isEmpty()) {
        text = text.replace(setting.getValue(), "***");
      }
    }
    return text;
  }

  private static final class Failure {
    private final Exception cause;
    private final RecordMetadata record;

    Failure(Exception cause, RecordMetadata record) {
      this.cause = cause;
      this.record = record;
    }
  }
}
