"""A real archive of Spark's classes: used when it fits, and not noticed when it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from onceonly.settings import Settings
from onceonly.spark import jvm

pytestmark = pytest.mark.integration
JOB = """
import sys
from pathlib import Path
from onceonly.settings import Settings
from onceonly.spark.session import session
spark = session(Settings.from_env(), records=10)
spark.range(3).write.format("delta").save(sys.argv[1])
pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
mapped = any(".jsa" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
print(spark.read.format("delta").load(sys.argv[1]).count(), mapped)
spark.stop()
"""


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jars of this checkout, with the archive that it has, or one that is made here."""
    ours, made = Settings.from_env().jars, tmp_path_factory.mktemp("jars")
    (made / "spark").symlink_to(ours / "spark")
    if there := jvm.find_archive(ours):
        (made / there.name).symlink_to(there)
    else:
        assert jvm.make_archive(made)
    return made


def start(jars: Path, folder: Path) -> tuple[str, str]:
    """What a process that writes a Delta table prints, and its errors; the archive was mapped: the second word."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env = {**plain, "ONCEONLY_JARS": str(jars), "ONCEONLY_HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(folder / "table")],
        env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def shown(errors: str) -> list[str]:
    """What is about the archive, in any spelling of the JVM."""
    words = ("cds", "shared", ".jsa", "archive")
    return [line for line in errors.splitlines() if any(word in line.lower() for word in words)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_start_maps_the_archive(jars: Path, tmp_path: Path) -> None:
    out, errors = start(jars, tmp_path)
    assert out == "3 True\n"
    assert shown(errors) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "broken",
    ["of other jars", "cut off", "something else"],
)
@pytest.mark.heavy
def test_an_archive_that_does_not_fit_is_passed_over_in_silence(jars: Path, tmp_path: Path, broken: str) -> None:
    """It has the right name all the same: that of other jars, say, which were touched within the same second."""
    there = jvm.find_archive(jars)
    assert there
    other = tmp_path / "jars"
    shutil.copytree(jars / "spark", other / "spark", copy_function=shutil.copy2)
    if broken == "of other jars":
        for jar in (other / "spark").glob("*.jar"):
            os.utime(jar, (1, 1))
    content = {"of other jars": there.read_bytes(), "cut off": there.read_bytes()[: 1 << 20]}.get(broken, b"no archive")
    size = there.stat().st_size if broken == "cut off" else len(content)
    (other / f"spark-{jvm.archive_key(other)}-{size}.jsa").write_bytes(content)
    out, errors = start(other, tmp_path)
    assert out.split()[0] == "3"
    assert shown(out + errors) == []
