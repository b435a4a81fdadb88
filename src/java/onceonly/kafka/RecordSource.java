package onceonly.kafka;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A data source of the committed records in given ranges of topics: {@code
 * spark.read.format("onceonly.kafka.RecordSource")}.
 *
 * <p>Its options are {@code ranges}, as JSON: by topic and partition the first offset, and the one after the last;
 * {@code patience}, in seconds; and {@code kafka.*}, settings of the Java client, with the login in them. Spark's own
 * connector has them as options too, and Spark shows options of a read nowhere.
 *
 * <p>It does the same as that connector for a batch, with fewer steps for each record: only the columns that a query
 * uses are made, and the broker is not asked for the extent of the log after each fetch.
 */
public final class RecordSource implements TableProvider {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final TypeReference<TreeMap<String, TreeMap<Integer, long[]>>> RANGES = new TypeReference<>() {};
  private static final String CLIENT = "kafka.";

  static final StructType SCHEMA =
      new StructType()
          .add("key", DataTypes.BinaryType)
          .add("value", DataTypes.BinaryType)
          .add("topic", DataTypes.StringType)
          .add("partition", DataTypes.IntegerType)
          .add("offset", DataTypes.LongType)
          .add("timestamp", DataTypes.TimestampType)
          .add(
              "headers",
              DataTypes.createArrayType(
                  new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType)));

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return SCHEMA;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    HashMap<String, String> client = new HashMap<>();
    options.forEach(
        (name, value) -> {
          if (name.startsWith(CLIENT)) {
            client.put(name.substring(CLIENT.length()), value);
          }
        });
    return new Records(options.get("ranges"), Duration.ofSeconds(Long.parseLong(options.get("patience"))), client);
  }

  /** Equal where the same ranges are read by the same settings, so that Spark may read once for several queries. */
  private record Records(String ranges, Duration patience, HashMap<String, String> client)
      implements Table, SupportsRead {
    @Override
    public String name() {
      return "records in Kafka";
    }

    @Override
    public StructType schema() {
      return SCHEMA;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      try {
        return new RangeScan(JSON.readValue(ranges, RANGES), patience, client);
      } catch (JsonProcessingException | IllegalArgumentException error) {
        throw new IllegalArgumentException("the option 'ranges' holds no ranges: " + ranges, error);
      }
    }

    /** Without the settings of the client, among which is the login. */
    @Override
    public String toString() {
      return name();
    }
  }
}
