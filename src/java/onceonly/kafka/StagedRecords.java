package onceonly.kafka;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.util.SerializableConfiguration;

/** The records of one sink, staged by one Spark job; at its end the receipts of the tasks that count are in a file. */
final class StagedRecords implements BatchWrite {
  private final Job job;
  private final Columns columns;
  private final Configuration hadoop;

  StagedRecords(Job job, Columns columns) {
    this.job = job;
    this.columns = columns;
    this.hadoop = SparkContext.getOrCreate().hadoopConfiguration();
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new Writers(job, columns, new SerializableConfiguration(hadoop));
  }

  /** Each attempt of a task writes a file and a transaction of its own, and only the receipts decide which count. */
  @Override
  public boolean useCommitCoordinator() {
    return false;
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    List<Receipt> receipts = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (message instanceof Receipt && ((Receipt) message).rows > 0) {
        receipts.add((Receipt) message);
      }
    }
    Path path = new Path(job.receipts);
    try (OutputStream file = fileSystem(path).create(path, false)) {
      file.write(new ObjectMapper().writeValueAsBytes(receipts));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Without the files of checksums that Hadoop puts beside those on a local disk. */
  private FileSystem fileSystem(Path path) throws IOException {
    FileSystem files = path.getFileSystem(hadoop);
    return files instanceof LocalFileSystem ? ((LocalFileSystem) files).getRawFileSystem() : files;
  }

  /** Nothing: what the tasks have left is found by its transaction's name. */
  @Override
  public void abort(WriterCommitMessage[] messages) {}

  private static final class Writers implements DataWriterFactory {
    private static final long serialVersionUID = 1;

    private final Job job;
    private final Columns columns;
    private final SerializableConfiguration hadoop;

    Writers(Job job, Columns columns, SerializableConfiguration hadoop) {
      this.job = job;
      this.columns = columns;
      this.hadoop = hadoop;
    }

    @Override
    public DataWriter<InternalRow> createWriter(int part, long taskId) {
      TaskContext context = TaskContext.get();
      boolean isFirstAttempt = context == null || context.attemptNumber() == 0;
      return new RecordWriter(job, columns, hadoop.value(), part, isFirstAttempt);
    }
  }
}
