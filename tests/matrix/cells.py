"""The cells: in each, one part has the version that its name tells, and the others are those of requirements.lock."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = ("kafka", "services", "spark")  # extras
TODAY = "today"


@dataclass(frozen=True)
class Cell:
    """One environment.

    Args:
        pins: requirements that take the place of today's.
        broker: the revision of the broker's jars, where it is not today's.
        dag: the steps run as tasks of a whole Airflow.
        missing: why it cannot be installed.
    """

    name: str
    pins: tuple[str, ...] = ()
    python: str = "3.11"
    broker: str | None = None
    dag: bool = False
    missing: str = ""

    @property
    def part(self) -> str:
        return self.name.partition("-")[0]

    @property
    def packages(self) -> str:
        """The name of its Python environment, which the cells of all brokers share."""
        return self.name if self.pins or self.part == "python" else TODAY

    @property
    def connect(self) -> bool:
        """Whether the last run is by a Spark Connect server of that version."""
        return self.part == "spark" and self.name != "spark-3.5"

    @property
    def extras(self) -> tuple[str, ...]:
        return (*PLAIN, *(["airflow"] if self.dag else []))


CELLS = (
    Cell(TODAY),
    Cell("spark-3.5", ("pyspark==3.5.9",)),
    Cell("spark-4.0", ("pyspark==4.0.5",)),
    Cell("spark-4.1", ("pyspark==4.1.4",)),
    Cell("spark-4.2", ("pyspark==4.2.1",)),
    Cell("spark-4.3", ("pyspark==4.3.0",), missing="there are no jars of Delta and of its Kafka connector for it yet"),
    Cell("airflow-3.1", ("apache-airflow==3.1.8",), dag=True),
    Cell("airflow-3.2", ("apache-airflow==3.2.2",), dag=True),
    Cell("airflow-3.3", ("apache-airflow==3.3.2",), dag=True),
    Cell("kafka-3.6", broker="3.6.2"),
    Cell("kafka-3.9", broker="3.9.2"),
    Cell("kafka-4.0", broker="4.0.2"),
    Cell("kafka-4.4", broker="4.4.0"),
    Cell("python-3.12", python="3.12"),
    Cell("python-3.13", python="3.13"),
)


def selected(words: list[str]) -> list[Cell]:
    """The cells whose names begin with one of the words; without any, all."""
    found = [cell for cell in CELLS if not words or any(cell.name.startswith(word) for word in words)]
    if not found:
        raise SystemExit(
            f"No cell is called {' or '.join(words)}. There are: {', '.join(cell.name for cell in CELLS)}."
        )
    return found
