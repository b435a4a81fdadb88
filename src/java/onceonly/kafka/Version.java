package onceonly.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** Which sources this jar was compiled from: SQL asks it by {@code reflect('onceonly.kafka.Version', 'get')}. */
public final class Version {
  private Version() {}

  public static String get() {
    try (InputStream file = Version.class.getResourceAsStream("version")) {
      return new String(file.readAllBytes(), StandardCharsets.US_ASCII).trim();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
