package onceonly.kafka;

import java.io.IOException;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * Stages the rows of one Spark partition: each goes to the spool and to Kafka, and {@code commit} makes both durable.
 *
 * <p>The transaction stays open, for another process to end. Without rows nothing is written.
 */
final class RecordWriter implements DataWriter<InternalRow> {
  private final Job job;
  private final Columns columns;
  private final Configuration hadoop;
  private final int part;
  private final boolean isFirstAttempt;
  private final RecordLimits limits;

  private SpoolFile spool;
  private Output output;
  private long rows;
  private long bytes;
  private long hashes;

  RecordWriter(Job job, Columns columns, Configuration hadoop, int part, boolean isFirstAttempt) {
    this.job = job;
    this.columns = columns;
    this.hadoop = hadoop;
    this.part = part;
    this.isFirstAttempt = isFirstAttempt;
    this.limits = new RecordLimits(job, part);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    Record record = columns.read(row);
    limits.check(record, rows);
    if (rows == 0) {
      open();
    }
    rows++;
    bytes += record.size;
    hashes += record.hash();
    if (spool != null) {
      spool.write(record);
    }
    if (output != null) {
      output.send(record);
    }
  }

  private void open() throws IOException {
    if (job.spool != null) {
      spool = new SpoolFile(job.spool, part, columns.present(), hadoop);
    }
    if (job.write) {
      output = new Output(job, transactionalId());
    }
  }

  /** Only a first attempt takes a pooled id: another would fence the one whose result may count. */
  private String transactionalId() {
    if (job.uniqueId == null) {
      return null;
    }
    if (job.pooledId != null && isFirstAttempt) {
      return job.pooledId + "-" + part;
    }
    return job.uniqueId + "-" + part + "-" + UUID.randomUUID().toString().substring(0, 8);
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (spool != null) {
      spool.finish();
    }
    if (output == null) {
      return new Receipt(spool == null ? "" : spool.name, rows, bytes, hashes, null, null);
    }
    output.flush();
    return new Receipt(spool == null ? "" : spool.name, rows, bytes, hashes, output.transactionalId, output.producer());
  }

  /** Nothing is taken back: what no receipt names is fenced and deleted by its name. */
  @Override
  public void abort() {}

  @Override
  public void close() throws IOException {
    if (output != null) {
      output.leave();
    }
    if (spool != null) {
      spool.close();
    }
  }
}
