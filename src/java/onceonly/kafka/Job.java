package onceonly.kafka;

import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.HashMap;

/**
 * What the tasks need to stage the rows of one sink, as {@code jvm_writer.py} has written it in JSON.
 *
 * <p>It is part of the tasks, not of the plan, which people can see: {@code producer} holds the login.
 */
final class Job implements Serializable {
  private static final long serialVersionUID = 1;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The limits of one topic, as {@code limits.Topic} explains them. */
  static final class Topic implements Serializable {
    private static final long serialVersionUID = 1;

    @JsonProperty int partitions;
    @JsonProperty boolean keyed;
    @JsonProperty boolean stamped;

    /** Milliseconds before now, and after it, that a timestamp may be; null: any. */
    @JsonProperty Long behind;

    @JsonProperty Long ahead;
  }

  @JsonProperty HashMap<String, Topic> topics;

  /** Maximum bytes of a record batch, for each topic. */
  @JsonProperty long room;

  /** Settings of the Java client. */
  @JsonProperty HashMap<String, String> producer;

  /** Milliseconds. */
  @JsonProperty("transaction_timeout") long transactionTimeout;

  /** Whether rows go to Kafka now. */
  @JsonProperty boolean write;

  /** Transactional ids are this, the number of the Spark partition, and random digits; null: no transaction. */
  @JsonProperty("unique_id") String uniqueId;

  /** Of a first attempt: the id is this and the number of the Spark partition; null: as others. */
  @JsonProperty("pooled_id") String pooledId;

  /** Folder of the spool files; null: none are written. */
  @JsonProperty String spool;

  /** File for the receipts of all tasks. */
  @JsonProperty String receipts;

  static Job parse(String text) {
    try {
      return JSON.readValue(text, Job.class);
    } catch (JsonProcessingException error) {
      error.clearLocation(); // it would show a part of the text
      throw new IllegalArgumentException("the job cannot be read: " + error.getClass().getSimpleName());
    }
  }
}
