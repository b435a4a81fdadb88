"""Names that DAGs, operators and pages share."""

VERIFY_DAG = "onceonly_verify"  # the DAG that verifies, unless it was given another id
RECOVERY_DAG = "onceonly_recovery"  # the recovery DAG, unless it was given another id
RECOVERY_TAG = "onceonly-recovery"  # of the recovery DAG, by which the page finds it
APPROVED = "approved"  # in the conf of a recovery run: the pipeline, epoch and attempt that a person has approved
