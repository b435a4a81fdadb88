package onceonly.kafka;

import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** What a task has written; with its names in JSON, it is a {@code stage.Receipt}. */
final class Receipt implements WriterCommitMessage {
  private static final long serialVersionUID = 1;

  @JsonProperty final String spool;
  @JsonProperty final long rows;
  @JsonProperty final long bytes;

  /** The sum of the records' hashes. */
  @JsonProperty final long hashes;

  /** The transactional id, or null. */
  @JsonProperty final String id;

  /** Id and epoch of the producer, or null. */
  @JsonProperty final long[] producer;

  Receipt(String spool, long rows, long bytes, long hashes, String id, long[] producer) {
    this.spool = spool;
    this.rows = rows;
    this.bytes = bytes;
    this.hashes = hashes;
    this.id = id;
    this.producer = producer;
  }
}
