package onceonly.text;

import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Whether the bytes of a string are UTF-8. Spark 4 has a function for it, which looks at each byte on its own; this one
 * looks at eight at once while they are ASCII, as most are.
 */
public final class IsUtf8 implements ScalarFunction<Boolean> {
  static final String NAME = "is_utf8";
  private static final long NOT_ASCII = 0x8080808080808080L;

  private final DataType input;

  private IsUtf8(DataType input) {
    this.input = input;
  }

  static final class Unbound implements UnboundFunction {
    @Override
    public String name() {
      return NAME;
    }

    @Override
    public BoundFunction bind(StructType input) {
      if (input.length() != 1 || !(input.fields()[0].dataType() instanceof StringType)) {
        throw new UnsupportedOperationException(NAME + " takes one string");
      }
      return new IsUtf8(input.fields()[0].dataType());
    }

    @Override
    public String description() {
      return NAME + "(text): whether its bytes are UTF-8; also of null";
    }
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {input};
  }

  @Override
  public DataType resultType() {
    return DataTypes.BooleanType;
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String canonicalName() {
    return "onceonly." + NAME;
  }

  /** Spark calls it by this name. */
  public static boolean invoke(UTF8String text) {
    if (text == null) {
      return true;
    }
    Object base = text.getBaseObject();
    long start = text.getBaseOffset();
    long end = start + text.numBytes();
    long place = start;
    while (place + Long.BYTES <= end && (Platform.getLong(base, place) & NOT_ASCII) == 0) {
      place += Long.BYTES;
    }
    while (place < end) {
      int length = length(base, place, end);
      if (length == 0) {
        return false;
      }
      place += length;
    }
    return true;
  }

  /** Return how many bytes the character has that begins at a place; 0: none does (table 3-7 of the Unicode standard). */
  private static int length(Object base, long place, long end) {
    int first = Platform.getByte(base, place) & 0xFF;
    if (first < 0x80) {
      return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
      return 0;
    }
    int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (place + length > end) {
      return 0;
    }
    int second = Platform.getByte(base, place + 1) & 0xFF;
    int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80; // else it would be longer than needed
    int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF; // else a surrogate, or no code point
    if (second < least || second > most) {
      return 0;
    }
    for (int index = 2; index < length; index++) {
      if ((Platform.getByte(base, place + index) & 0xC0) != 0x80) {
        return 0;
      }
    }
    return length;
  }
}
