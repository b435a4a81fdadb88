package onceonly.kafka;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Where the parts of a record are in a row; -1: no row has that part. */
final class Columns implements Serializable {
  private static final long serialVersionUID = 1;

  private final int topic;
  private final int partition;
  private final int key;
  private final int value;
  private final int timestamp;
  private final int headers;

  /** Where the rows have no topic. */
  private final String onlyTopic;

  private transient UTF8String lastTopic;
  private transient String lastTopicText;

  Columns(StructType schema, Job job) {
    List<String> names = Arrays.asList(schema.fieldNames());
    topic = names.indexOf("topic");
    partition = names.indexOf("partition");
    key = names.indexOf("key");
    value = names.indexOf("value");
    timestamp = names.indexOf("timestamp");
    headers = names.indexOf("headers");
    onlyTopic = topic < 0 ? job.topics.keySet().iterator().next() : null;
  }

  /** Return the parts that a record may have, in their order. */
  List<String> present() {
    List<String> names = new ArrayList<>(List.of("topic"));
    int[] places = {partition, key, value, timestamp, headers};
    List<String> others = List.of("partition", "key", "value", "timestamp", "headers");
    for (int index = 0; index < places.length; index++) {
      if (places[index] >= 0) {
        names.add(others.get(index));
      }
    }
    return names;
  }

  /** Return a copy of what the row holds: Spark uses its memory again. */
  Record read(InternalRow row) {
    return new Record(
        topic < 0 ? onlyTopic : topic(row),
        has(row, partition) ? (Integer) row.getInt(partition) : null,
        has(row, key) ? row.getBinary(key) : null,
        has(row, value) ? row.getBinary(value) : null,
        has(row, timestamp) ? (Long) row.getLong(timestamp) : null,
        has(row, headers) ? headers(row.getArray(headers)) : Record.NO_HEADERS);
  }

  private static boolean has(InternalRow row, int column) {
    return column >= 0 && !row.isNullAt(column);
  }

  /** Return the topic's name, decoded anew only where it is another one than that of the row before. */
  private String topic(InternalRow row) {
    if (row.isNullAt(topic)) {
      return null;
    }
    UTF8String name = row.getUTF8String(topic);
    if (!name.equals(lastTopic)) {
      lastTopic = name.copy();
      lastTopicText = name.toString();
    }
    return lastTopicText;
  }

  private static Record.Header[] headers(ArrayData list) {
    if (list.numElements() == 0) {
      return Record.NO_HEADERS;
    }
    Record.Header[] headers = new Record.Header[list.numElements()];
    for (int index = 0; index < headers.length; index++) {
      if (list.isNullAt(index)) {
        headers[index] = new Record.Header(null, null);
        continue;
      }
      InternalRow header = list.getStruct(index, 2);
      headers[index] =
          new Record.Header(
              header.isNullAt(0) ? null : header.getUTF8String(0).getBytes(),
              header.isNullAt(1) ? null : header.getBinary(1));
    }
    return headers;
  }
}
