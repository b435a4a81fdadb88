package onceonly.kafka;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A data source that stages the records of one Kafka sink: {@code df.write.format("onceonly.kafka.RecordSink")}.
 *
 * <p>Its only option is {@code job}: the name of the session's setting that holds the {@link Job}. The job has the
 * login at the brokers, and options are a part of the plan, which people can see; the setting's name has "secret" in
 * it, so Spark shows it nowhere.
 */
public final class RecordSink implements TableProvider {
  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType();
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    return new Records(schema);
  }

  private static final class Records implements Table, SupportsWrite {
    private final StructType schema;

    Records(StructType schema) {
      this.schema = schema;
    }

    @Override
    public String name() {
      return "records of a Kafka sink";
    }

    @Override
    public StructType schema() {
      return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      String setting = info.options().get("job");
      String text = setting == null ? null : SQLConf.get().getConfString(setting, null);
      if (text == null) {
        throw new IllegalArgumentException("the option 'job' names no setting of this session: " + setting);
      }
      Job job = Job.parse(text);
      Columns columns = new Columns(info.schema(), job);
      return new WriteBuilder() {
        @Override
        public Write build() {
          return new Write() {
            @Override
            public BatchWrite toBatch() {
              return new StagedRecords(job, columns);
            }
          };
        }
      };
    }
  }
}
