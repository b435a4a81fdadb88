package onceonly.kafka;

import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Finds rows that the brokers or a client would always refuse: the rules of {@code limits.py}, which has the words.
 *
 * <p>Source: LogValidator and UnifiedLog of Kafka 4.3; "Record Batch" of its protocol, version 2.
 */
final class RecordLimits {
  private static final int QUEUE = 64 << 20; // maximum bytes that wait to be sent
  private static final int BATCH = 61; // bytes of a record batch before its records
  private static final int AROUND = 36; // maximum bytes of a record in addition to key, value and headers
  private static final int SHOWN_KEY = 80; // bytes

  private final Job job;
  private final int part;
  private final long largest;

  RecordLimits(Job job, int part) {
    this.job = job;
    this.part = part;
    this.largest = Math.min(job.room, QUEUE);
  }

  /**
   * Refuse the record if Kafka would, after the decision.
   *
   * @param row its number in the Spark partition, from 0
   */
  void check(Record record, long row) throws WriterError {
    Job.Topic topic = record.topic == null ? null : job.topics.get(record.topic);
    if (topic == null) {
      throw refusal("topic", record, row);
    }
    if (record.partition != null && (record.partition < 0 || record.partition >= topic.partitions)) {
      throw refusal("partition", record, row);
    }
    if (topic.keyed && record.key == null) {
      throw refusal("key", record, row);
    }
    if (record.timestamp != null) {
      checkTime(record, topic, row);
    }
    for (Record.Header header : record.headers) {
      if (header.text() == null) {
        throw refusal("header", record, row);
      }
    }
    checkSize(record, row);
  }

  private void checkTime(Record record, Job.Topic topic, long row) throws WriterError {
    long time = record.timestamp;
    if (time < 0) {
      throw refusal("before_1970", record, row);
    }
    if (topic.stamped) {
      return; // the brokers ignore it
    }
    if (time == 0) {
      throw refusal("start_of_1970", record, row);
    }
    long now = System.currentTimeMillis();
    if (topic.behind != null && time < now - topic.behind) {
      throw refusal("too_old", record, row);
    }
    if (topic.ahead != null && time > now + topic.ahead) {
      throw refusal("too_far_ahead", record, row);
    }
  }

  private void checkSize(Record record, long row) throws WriterError {
    long size = record.size;
    if (size + BATCH + AROUND <= largest) {
      return;
    }
    long batch = smallestBatch(record);
    if (batch > largest || size > largest - AROUND) {
      throw refusal("size", record, row, Map.of("size", size, "batch", batch));
    }
  }

  private static long smallestBatch(Record record) {
    long body = 3; // attributes, two deltas of 0
    body += field(record.key) + field(record.value) + varint(record.headers.length);
    for (Record.Header header : record.headers) {
      body += field(header.key) + field(header.value);
    }
    return BATCH + varint(body) + body;
  }

  private static long field(byte[] bytes) {
    return bytes == null ? varint(-1) : varint(bytes.length) + bytes.length;
  }

  /** Return the bytes of a number's encoding: zigzag, seven bits per byte. */
  private static int varint(long number) {
    long zigzag = (number << 1) ^ (number >> 63);
    return Math.max(1, (Long.SIZE - Long.numberOfLeadingZeros(zigzag) + 6) / 7);
  }

  private WriterError refusal(String rule, Record record, long row) {
    return refusal(rule, record, row, Map.of());
  }

  private WriterError refusal(String rule, Record record, long row, Map<String, Long> sizes) {
    Map<String, Object> facts = new LinkedHashMap<>();
    facts.put("kind", "row");
    facts.put("rule", rule);
    facts.put("row", row);
    facts.put("part", part);
    facts.put("topic", record.topic);
    facts.put("partition", record.partition);
    facts.put("timestamp", record.timestamp);
    if (record.key != null) {
      byte[] start = Arrays.copyOf(record.key, Math.min(record.key.length, SHOWN_KEY));
      facts.put("key", Base64.getEncoder().encodeToString(start));
    }
    facts.putAll(sizes);
    return new WriterError(facts);
  }
}
