package onceonly.kafka;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructType;

/** The read of some columns of the records: a task for each range. */
final class RangeScan implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
  /** The records of a partition from {@code start} on, before {@code end}. */
  record Range(String topic, int partition, long start, long end) implements InputPartition {}

  private final List<Range> ranges = new ArrayList<>();
  private final Duration patience;
  private final HashMap<String, String> client;
  private StructType columns = RecordSource.SCHEMA;

  RangeScan(TreeMap<String, TreeMap<Integer, long[]>> topics, Duration patience, HashMap<String, String> client) {
    topics.forEach(
        (topic, partitions) ->
            partitions.forEach(
                (partition, offsets) -> ranges.add(new Range(topic, partition, offsets[0], offsets[1]))));
    this.patience = patience;
    this.client = client;
  }

  @Override
  public void pruneColumns(StructType required) {
    columns = required;
  }

  @Override
  public Scan build() {
    return this;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    return "RangeScan" + Arrays.toString(columns.fieldNames());
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return ranges.toArray(new InputPartition[0]);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Readers(patience, client, columns.fieldNames());
  }

  private record Readers(Duration patience, HashMap<String, String> client, String[] columns)
      implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition range) {
      return new RangeReader((Range) range, patience, client, columns);
    }
  }
}
