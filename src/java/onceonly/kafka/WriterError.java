package onceonly.kafka;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.Map;

/** An error that {@code jvm_writer.py} finds in the text of Spark's, and puts into words. */
final class WriterError extends IOException {
  private static final long serialVersionUID = 1;
  private static final String PREFIX = "ONCEONLY-WRITER-ERROR ";

  WriterError(Map<String, ?> facts) {
    super(PREFIX + json(facts));
  }

  private static String json(Map<String, ?> facts) {
    try {
      return new ObjectMapper().writeValueAsString(facts);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }
}
