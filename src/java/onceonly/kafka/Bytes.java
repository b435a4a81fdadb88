package onceonly.kafka;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/** Bytes to which others are added, in an array that grows; numbers are little-endian, as Parquet has them. */
final class Bytes {
  private static final VarHandle INTS = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle LONGS = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final int FIRST = 1 << 12; // bytes

  private byte[] array = new byte[FIRST];
  private int size;

  byte[] array() {
    return array;
  }

  int size() {
    return size;
  }

  /** Forget the bytes, and keep the room. */
  void clear() {
    size = 0;
  }

  void add(byte[] bytes) {
    add(bytes, bytes.length);
  }

  void add(Bytes bytes) {
    add(bytes.array, bytes.size);
  }

  private void add(byte[] bytes, int length) {
    makeRoom(length);
    System.arraycopy(bytes, 0, array, size, length);
    size += length;
  }

  void addByte(int number) {
    makeRoom(1);
    array[size++] = (byte) number;
  }

  void addInt(int number) {
    makeRoom(Integer.BYTES);
    INTS.set(array, size, number);
    size += Integer.BYTES;
  }

  void addLong(long number) {
    makeRoom(Long.BYTES);
    LONGS.set(array, size, number);
    size += Long.BYTES;
  }

  /** Add a number of 0 or more, seven bits per byte. */
  void addVarint(int number) {
    while (number >= 1 << 7) {
      addByte(number | 1 << 7);
      number >>>= 7;
    }
    addByte(number);
  }

  private void makeRoom(int more) {
    int needed = Math.addExact(size, more);
    if (needed > array.length) {
      array = Arrays.copyOf(array, (int) Math.min(Integer.MAX_VALUE - 8L, Math.max(needed, 2L * array.length)));
    }
  }
}
