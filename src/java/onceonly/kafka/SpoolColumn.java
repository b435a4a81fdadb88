package onceonly.kafka;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.parquet.bytes.BytesInput;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.column.Encoding;
import org.apache.parquet.column.page.DictionaryPage;
import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.xerial.snappy.Snappy;

/**
 * One column of a row group of a spool, as one page without statistics: nobody searches a spool.
 *
 * <p>Parquet's own column writers took a sixth of the time of a stage's tasks, and this takes a fortieth. Source: "Encodings",
 * "Nested Encoding" and "Data Pages" of Parquet's format.
 */
final class SpoolColumn {
  private static final int INDEX = 32; // bits

  private final ColumnDescriptor column;
  private final Runs repetitions;
  private final Runs definitions;
  private final Bytes values = new Bytes();
  private int count;

  /** Of a column of names, of which a spool has few. */
  private final Map<String, Integer> names = new LinkedHashMap<>();

  private final Runs indexes = new Runs(INDEX);
  private String lastName;
  private int lastIndex;

  SpoolColumn(ColumnDescriptor column) {
    this.column = column;
    repetitions = new Runs(width(column.getMaxRepetitionLevel()));
    definitions = new Runs(width(column.getMaxDefinitionLevel()));
  }

  private static int width(int level) {
    return Integer.SIZE - Integer.numberOfLeadingZeros(level);
  }

  void addName(String name) {
    addLevels(0, 1);
    if (!name.equals(lastName)) {
      lastName = name;
      lastIndex = names.computeIfAbsent(name, anew -> names.size());
    }
    indexes.add(lastIndex);
  }

  void addBytes(byte[] value) {
    addBytes(value, 0);
  }

  /**
   * Add a value, or null.
   *
   * @param repetition 1: it belongs to the same list as the value before
   */
  void addBytes(byte[] value, int repetition) {
    int defined = column.getMaxDefinitionLevel();
    addLevels(repetition, value == null ? defined - 1 : defined);
    if (value != null) {
      values.addInt(value.length);
      values.add(value);
    }
  }

  void addInt(Integer value) {
    addLevels(0, value == null ? 0 : 1);
    if (value != null) {
      values.addInt(value);
    }
  }

  void addLong(Long value) {
    addLevels(0, value == null ? 0 : 1);
    if (value != null) {
      values.addLong(value);
    }
  }

  void addNoList() {
    addLevels(0, 0);
  }

  private void addLevels(int repetition, int definition) {
    count++;
    definitions.add(definition);
    if (column.getMaxRepetitionLevel() > 0) {
      repetitions.add(repetition);
    }
  }

  /** Write the values, and forget them. */
  void write(ParquetFileWriter file) throws IOException {
    file.startColumn(column, count, CompressionCodecName.SNAPPY);
    boolean named = !names.isEmpty();
    if (named) {
      writeNames(file);
      values.addByte(INDEX);
      values.add(indexes.finish());
    }
    Bytes page = new Bytes();
    if (column.getMaxRepetitionLevel() > 0) {
      addRuns(page, repetitions);
    }
    addRuns(page, definitions);
    page.add(values);
    // The method with a number of rows would make an index of pages, which says of pages without statistics that they are null.
    file.writeDataPage(
        count,
        page.size(),
        compress(page),
        Statistics.getBuilderForReading(column.getPrimitiveType()).build(),
        Encoding.RLE,
        Encoding.RLE,
        named ? Encoding.RLE_DICTIONARY : Encoding.PLAIN);
    file.endColumn();
    clear();
  }

  private void writeNames(ParquetFileWriter file) throws IOException {
    Bytes page = new Bytes();
    for (String name : names.keySet()) {
      byte[] text = name.getBytes(StandardCharsets.UTF_8);
      page.addInt(text.length);
      page.add(text);
    }
    file.writeDictionaryPage(new DictionaryPage(compress(page), page.size(), names.size(), Encoding.PLAIN));
  }

  private static void addRuns(Bytes page, Runs runs) {
    Bytes bytes = runs.finish();
    page.addInt(bytes.size());
    page.add(bytes);
  }

  private static BytesInput compress(Bytes page) throws IOException {
    byte[] compressed = new byte[Snappy.maxCompressedLength(page.size())];
    return BytesInput.from(compressed, 0, Snappy.compress(page.array(), 0, page.size(), compressed, 0));
  }

  private void clear() {
    count = 0;
    values.clear();
    repetitions.clear();
    definitions.clear();
    names.clear();
    indexes.clear();
    lastName = null;
  }
}
