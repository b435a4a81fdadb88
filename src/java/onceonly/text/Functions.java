package onceonly.text;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A catalog that has one function, {@link IsUtf8}. A session has it by {@code spark.sql.catalog.NAME}. */
public final class Functions implements FunctionCatalog {
  private static final String[] ROOT = {};

  private String name;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[] {Identifier.of(ROOT, IsUtf8.NAME)};
  }

  @Override
  public UnboundFunction loadFunction(Identifier function) throws NoSuchFunctionException {
    if (function.namespace().length == 0 && function.name().equals(IsUtf8.NAME)) {
      return new IsUtf8.Unbound();
    }
    throw new NoSuchFunctionException(function);
  }
}
