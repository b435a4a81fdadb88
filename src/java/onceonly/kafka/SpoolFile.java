package onceonly.kafka;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
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
  private static final long ROW_GROUP = 16 << 20; // bytes of rows that are collected before they are written

  final String name;
  private final ParquetWriter<Record> writer;
  private boolean isOpen = true;

  SpoolFile(String folder, int part, List<String> columns, Configuration hadoop) throws IOException {
    name = part + "-" + UUID.randomUUID().toString().replace("-", "").substring(0, 12) + ".parquet";
    Path path = new Path(new Path(folder), name);
    boolean isLocal = path.getFileSystem(hadoop).getScheme().equals("file");
    OutputFile file =
        isLocal ? new DurableFile(java.nio.file.Path.of(path.toUri().getPath())) : HadoopOutputFile.fromPath(path, hadoop);
    Builder builder =
        new Builder(file, columns)
            .withConf(hadoop)
            .withWriteMode(ParquetFileWriter.Mode.CREATE)
            .withCompressionCodec(CompressionCodecName.SNAPPY)
            .withRowGroupSize(ROW_GROUP)
            .withDictionaryEncoding(false)
            .withDictionaryEncoding("topic", true);
    dropStatistics(builder);
    writer = builder.build();
  }

  /** Nobody searches a spool. Only newer Parquets can leave them out, which takes a third of the time. */
  private static void dropStatistics(Builder builder) {
    try {
      builder.getClass().getMethod("withStatisticsEnabled", boolean.class).invoke(builder, false);
    } catch (ReflectiveOperationException error) {
      // an older Parquet, which keeps them
    }
  }

  void write(Record record) throws IOException {
    writer.write(record);
  }

  void finish() throws IOException {
    isOpen = false;
    writer.close();
  }

  /** Give up what was not finished. */
  @Override
  public void close() {
    if (isOpen) {
      isOpen = false;
      try {
        writer.close();
      } catch (IOException | RuntimeException error) {
        // it is not named by a receipt, and deleted with its folder
      }
    }
  }

  private static final class Builder extends ParquetWriter.Builder<Record, Builder> {
    private final List<String> columns;

    Builder(OutputFile file, List<String> columns) {
      super(file);
      this.columns = columns;
    }

    @Override
    protected Builder self() {
      return this;
    }

    @Override
    protected WriteSupport<Record> getWriteSupport(Configuration hadoop) {
      return new Rows(columns);
    }
  }

  private static final class Rows extends WriteSupport<Record> {
    private final List<String> columns;
    private final int topic;
    private final int partition;
    private final int key;
    private final int value;
    private final int timestamp;
    private final int headers;
    private RecordConsumer out;
    private String lastTopic;
    private Binary lastTopicBytes;

    Rows(List<String> columns) {
      this.columns = columns;
      topic = columns.indexOf("topic");
      partition = columns.indexOf("partition");
      key = columns.indexOf("key");
      value = columns.indexOf("value");
      timestamp = columns.indexOf("timestamp");
      headers = columns.indexOf("headers");
    }

    @Override
    public WriteContext init(Configuration hadoop) {
      StringBuilder schema = new StringBuilder("message record {");
      for (String column : columns) {
        schema.append(TYPES.get(column));
      }
      return new WriteContext(MessageTypeParser.parseMessageType(schema + "}"), Map.of());
    }

    @Override
    public void prepareForWrite(RecordConsumer consumer) {
      out = consumer;
    }

    @Override
    public void write(Record record) {
      out.startMessage();
      if (!record.topic.equals(lastTopic)) {
        lastTopic = record.topic;
        lastTopicBytes = Binary.fromString(lastTopic);
      }
      out.startField("topic", topic);
      out.addBinary(lastTopicBytes);
      out.endField("topic", topic);
      if (record.partition != null) {
        out.startField("partition", partition);
        out.addInteger(record.partition);
        out.endField("partition", partition);
      }
      write("key", key, record.key);
      write("value", value, record.value);
      if (record.timestamp != null) {
        out.startField("timestamp", timestamp);
        out.addLong(record.timestamp);
        out.endField("timestamp", timestamp);
      }
      if (record.headers.length > 0) {
        write(record.headers);
      }
      out.endMessage();
    }

    private void write(Record.Header[] list) {
      out.startField("headers", headers);
      out.startGroup();
      out.startField("list", 0);
      for (Record.Header header : list) {
        out.startGroup();
        out.startField("element", 0);
        out.startGroup();
        write("key", 0, header.key);
        write("value", 1, header.value);
        out.endGroup();
        out.endField("element", 0);
        out.endGroup();
      }
      out.endField("list", 0);
      out.endGroup();
      out.endField("headers", headers);
    }

    private void write(String name, int index, byte[] bytes) {
      if (bytes != null) {
        out.startField(name, index);
        out.addBinary(Binary.fromConstantByteArray(bytes));
        out.endField(name, index);
      }
    }
  }
}
