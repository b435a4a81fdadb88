package onceonly.kafka;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;

/** A file of records as Parquet, in the columns of {@code spool.py}; valid after {@code finish} has made it durable. */
final class SpoolFile implements Closeable {
  private static final Map<String, String> TYPES =
      Map.of(
          "topic", "optional binary topic (STRING);",
          "partition", "optional int32 partition;",
          "key", "optional binary key;",
          "value", "optional binary value;",
          "timestamp", "optional int64 timestamp;",
          "headers",
              "optional group headers (LIST) { repeated group list { optional group element {"
                  + " optional binary key (STRING); optional binary value; } } }");
  private static final int ROW_GROUP = 4 << 20; // bytes that are collected before they are written
  private static final int AROUND_RECORD = 24; // bytes that a record takes beside its key, value and headers, at most

  final String name;
  private final Destination destination;
  private final ParquetFileWriter file;
  private boolean isOpen = true;
  private long rows; // that are collected
  private long collected; // bytes

  private final SpoolColumn[] columns;
  private final SpoolColumn topic;
  private final SpoolColumn partition;
  private final SpoolColumn key;
  private final SpoolColumn value;
  private final SpoolColumn timestamp;
  private final SpoolColumn headerKey;
  private final SpoolColumn headerValue;

  SpoolFile(String folder, int part, List<String> names, Configuration hadoop) throws IOException {
    name = part + "-" + UUID.randomUUID().toString().replace("-", "").substring(0, 12) + ".parquet";
    MessageType schema = schema(names);
    columns = schema.getColumns().stream().map(SpoolColumn::new).toArray(SpoolColumn[]::new);
    topic = column(schema, "topic");
    partition = column(schema, "partition");
    key = column(schema, "key");
    value = column(schema, "value");
    timestamp = column(schema, "timestamp");
    headerKey = column(schema, "headers", "list", "element", "key");
    headerValue = column(schema, "headers", "list", "element", "value");
    destination = new Destination(place(new Path(new Path(folder), name), hadoop));
    file = new ParquetFileWriter(destination, schema, ParquetFileWriter.Mode.CREATE, ROW_GROUP, 0);
    file.start();
  }

  private static OutputFile place(Path path, Configuration hadoop) throws IOException {
    boolean isLocal = path.getFileSystem(hadoop).getScheme().equals("file");
    return isLocal
        ? new DurableFile(java.nio.file.Path.of(path.toUri().getPath()))
        : HadoopOutputFile.fromPath(path, hadoop);
  }

  private static MessageType schema(List<String> names) {
    StringBuilder schema = new StringBuilder("message record {");
    for (String name : names) {
      schema.append(TYPES.get(name));
    }
    return MessageTypeParser.parseMessageType(schema + "}");
  }

  /** Return the column, or null if the spool has none of that name. */
  private SpoolColumn column(MessageType schema, String... path) {
    if (!schema.containsField(path[0])) {
      return null;
    }
    return columns[schema.getColumns().indexOf(schema.getColumnDescription(path))];
  }

  void write(Record record) throws IOException {
    rows++;
    topic.addName(record.topic);
    if (partition != null) {
      partition.addInt(record.partition);
    }
    if (key != null) {
      key.addBytes(record.key);
    }
    if (value != null) {
      value.addBytes(record.value);
    }
    if (timestamp != null) {
      timestamp.addLong(record.timestamp);
    }
    if (headerKey != null) {
      write(record.headers);
    }
    collected += record.size + AROUND_RECORD;
    if (collected >= ROW_GROUP) {
      writeRowGroup();
    }
  }

  private void write(Record.Header[] headers) {
    if (headers.length == 0) {
      headerKey.addNoList();
      headerValue.addNoList();
    }
    for (int index = 0; index < headers.length; index++) {
      headerKey.addBytes(headers[index].key, index == 0 ? 0 : 1);
      headerValue.addBytes(headers[index].value, index == 0 ? 0 : 1);
    }
  }

  private void writeRowGroup() throws IOException {
    file.startBlock(rows);
    for (SpoolColumn column : columns) {
      column.write(file);
    }
    file.endBlock();
    rows = 0;
    collected = 0;
  }

  void finish() throws IOException {
    isOpen = false;
    try (Destination opened = destination) {
      if (rows > 0) {
        writeRowGroup();
      }
      file.end(Map.of());
    }
  }

  /** Give up what was not finished: no receipt names it, and it is deleted with its folder. */
  @Override
  public void close() {
    if (isOpen) {
      isOpen = false;
      try {
        destination.close();
      } catch (IOException | RuntimeException error) {
        // nothing of it counts
      }
    }
  }

  /** A place whose stream can be closed without an end of the file, which not every Parquet's writer offers. */
  private static final class Destination implements OutputFile, Closeable {
    private final OutputFile file;
    private PositionOutputStream stream;

    Destination(OutputFile file) {
      this.file = file;
    }

    @Override
    public PositionOutputStream create(long blockSize) throws IOException {
      stream = file.create(blockSize);
      return stream;
    }

    @Override
    public PositionOutputStream createOrOverwrite(long blockSize) throws IOException {
      return create(blockSize);
    }

    @Override
    public boolean supportsBlockSize() {
      return file.supportsBlockSize();
    }

    @Override
    public long defaultBlockSize() {
      return file.defaultBlockSize();
    }

    @Override
    public void close() throws IOException {
      if (stream != null) {
        stream.close();
      }
    }
  }
}
