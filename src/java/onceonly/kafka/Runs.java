package onceonly.kafka;

/** Small numbers as runs of one value: the first half of Parquet's "RLE / bit-packing hybrid". */
final class Runs {
  private final Bytes bytes = new Bytes();
  private final int width; // bits of a value
  private int value;
  private int length;

  Runs(int width) {
    this.width = width;
  }

  void add(int next) {
    if (next != value && length > 0) {
      end();
    }
    value = next;
    length++;
  }

  private void end() {
    bytes.addVarint(length << 1);
    for (int bit = 0; bit < width; bit += Byte.SIZE) {
      bytes.addByte(value >>> bit);
    }
    length = 0;
  }

  /** Return all runs, until {@code clear}. */
  Bytes finish() {
    if (length > 0) {
      end();
    }
    return bytes;
  }

  void clear() {
    bytes.clear();
    length = 0;
  }
}
