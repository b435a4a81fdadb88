package onceonly.kafka;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.unsafe.Platform;

/** One record, as it goes to the spool and to Kafka. */
final class Record {
  static final Header[] NO_HEADERS = {};
  private static final long FIRST_SEED = 42;
  private static final int AROUND_HEADER = 10; // maximum bytes, as librdkafka counts

  final String topic;
  final Integer partition;
  final byte[] key;
  final byte[] value;
  final Long timestamp; // milliseconds
  final Header[] headers;
  final long size; // bytes of key, value and headers, as limits.py counts them

  Record(String topic, Integer partition, byte[] key, byte[] value, Long timestamp, Header[] headers) {
    this.topic = topic;
    this.partition = partition;
    this.key = key;
    this.value = value;
    this.timestamp = timestamp;
    this.headers = headers;
    this.size = sizeOf(key, value, headers);
  }

  private static long sizeOf(byte[] key, byte[] value, Header[] headers) {
    long size = (long) length(key) + length(value);
    for (Header header : headers) {
      size += (long) length(header.key) + length(header.value) + AROUND_HEADER;
    }
    return size;
  }

  /** xxHash64 of the key and then, with that as the seed, of the value: as {@code digest.py} explains it. */
  long hash() {
    return hash(value, hash(key, FIRST_SEED));
  }

  private static long hash(byte[] bytes, long seed) {
    if (bytes == null) {
      return seed;
    }
    return XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, seed);
  }

  private static int length(byte[] bytes) {
    return bytes == null ? 0 : bytes.length;
  }

  static final class Header {
    final byte[] key; // UTF-8
    final byte[] value;

    Header(byte[] key, byte[] value) {
      this.key = key;
      this.value = value;
    }

    /** Return the key as text; null where it is none that can be sent: not UTF-8, or with a zero byte. */
    String text() {
      if (key == null) {
        return null;
      }
      for (byte character : key) {
        if (character == 0) {
          return null;
        }
      }
      try {
        return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(key)).toString();
      } catch (CharacterCodingException error) {
        return null;
      }
    }
  }
}
