package onceonly.kafka;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads one range of a partition, to its end and not further, by a consumer of its own without a group.
 *
 * <p>Offsets without a record are normal: markers of transactions, aborted records, and what was compacted. Records that
 * were deleted are an error, because the consumer is not told where to go on instead.
 */
final class RangeReader implements PartitionReader<InternalRow> {
  private static final Duration POLL = Duration.ofSeconds(1);
  private static final long MICROS = 1000; // in a millisecond

  private final RangeScan.Range range;
  private final Duration patience; // how long nothing may come
  private final TopicPartition partition;
  private final List<Function<ConsumerRecord<byte[], byte[]>, Object>> parts = new ArrayList<>(); // by column
  private final KafkaConsumer<byte[], byte[]> consumer;
  private Iterator<ConsumerRecord<byte[], byte[]>> fetched = Collections.emptyIterator();
  private ConsumerRecord<byte[], byte[]> current;

  RangeReader(RangeScan.Range range, Duration patience, Map<String, String> client, String[] columns) {
    this.range = range;
    this.patience = patience;
    UTF8String topic = UTF8String.fromString(range.topic());
    for (String column : columns) {
      parts.add(part(column, topic));
    }
    partition = new TopicPartition(range.topic(), range.partition());
    Properties properties = new Properties();
    properties.putAll(client);
    properties.put("enable.auto.commit", "false");
    properties.put("auto.offset.reset", "none");
    consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    consumer.assign(List.of(partition));
    consumer.seek(partition, range.start());
  }

  /** Return what takes the value of a column from a record. */
  private static Function<ConsumerRecord<byte[], byte[]>, Object> part(String column, UTF8String topic) {
    switch (column) {
      case "key":
        return ConsumerRecord::key;
      case "value":
        return ConsumerRecord::value;
      case "topic":
        return record -> topic;
      case "partition":
        return ConsumerRecord::partition;
      case "offset":
        return ConsumerRecord::offset;
      case "timestamp":
        return record -> Math.multiplyExact(record.timestamp(), MICROS);
      case "headers":
        return RangeReader::headers;
      default:
        throw new IllegalArgumentException("a record has no column '" + column + "'");
    }
  }

  /** Return the headers in their order; null: there are none. */
  private static ArrayData headers(ConsumerRecord<byte[], byte[]> record) {
    List<InternalRow> headers = new ArrayList<>();
    for (Header header : record.headers()) {
      headers.add(new GenericInternalRow(new Object[] {UTF8String.fromString(header.key()), header.value()}));
    }
    return headers.isEmpty() ? null : new GenericArrayData(headers.toArray());
  }

  @Override
  public boolean next() {
    while (!fetched.hasNext()) {
      if (consumer.position(partition) >= range.end()) {
        return false;
      }
      fetched = fetch();
    }
    current = fetched.next();
    return current.offset() < range.end();
  }

  /** Return the next records; none where the position moved on without any. */
  private Iterator<ConsumerRecord<byte[], byte[]>> fetch() {
    long start = consumer.position(partition);
    long deadline = System.nanoTime() + patience.toNanos();
    while (true) {
      Iterator<ConsumerRecord<byte[], byte[]>> records = consumer.poll(POLL).iterator();
      if (records.hasNext() || consumer.position(partition) > start) {
        return records;
      }
      if (System.nanoTime() > deadline) {
        throw new TimeoutException(
            "No record of " + partition + " came from offset " + start + " on, in " + patience.toSeconds() + " s.");
      }
    }
  }

  @Override
  public InternalRow get() {
    Object[] values = new Object[parts.size()];
    for (int index = 0; index < values.length; index++) {
      values[index] = parts.get(index).apply(current);
    }
    return new GenericInternalRow(values);
  }

  @Override
  public void close() {
    consumer.close();
  }
}
