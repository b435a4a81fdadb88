#!/usr/bin/env bash
# On Kubernetes, Spark asks an image for `driver …` and `executor`, as its own images know them; all else is run as it is.
set -euo pipefail

case "${1:-}" in
  driver | executor) cd "$(mktemp -d)" ;; # Spark copies its jars to where it begins, where this user may write nothing
esac

case "${1:-}" in
  driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      --deploy-mode client "$@"
    ;;
  executor)
    options=()
    number=0
    while name="SPARK_JAVA_OPT_$number"; [ -n "${!name:-}" ]; do
      options+=("${!name}")
      number=$((number + 1))
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *) exec "$@" ;;
esac
