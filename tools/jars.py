"""Fetch the jars of jars/ivy.xml into .jars/spark, broker and hdfs, with the Ivy that PySpark brings along."""

import argparse
import importlib.util
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JARS = ROOT / ".jars"
FOLDERS = ("spark", "broker", "hdfs")


def ivy_jar() -> Path:
    """The Ivy inside the installed PySpark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed here; run `make setup`.")
    return next(Path(spec.origin).parent.glob("jars/ivy-*.jar"))


def retrieve(java: str, folders: list[str], into: Path) -> None:
    """Resolve, verify checksums and copy; downloads are kept in .jars/cache."""
    cache = JARS / "cache"
    command = [java, f"-Divy.default.ivy.user.dir={cache}", "-jar", ivy_jar(), "-cache", cache]
    command += ["-settings", ROOT / "jars/ivysettings.xml", "-ivy", ROOT / "jars/ivy.xml"]
    command += ["-confs", *folders, "-retrieve", f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"The jars of jars/ivy.xml cannot be fetched:\n{done.stdout[-4000:]}")


def main() -> None:
    """Replace the folders only once everything has arrived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--java", default="java", help="the java command")
    parser.add_argument("folders", nargs="*", default=FOLDERS, help="all by default", metavar="spark|broker|hdfs")
    given = parser.parse_args()
    arriving = JARS / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    retrieve(given.java, given.folders, arriving)
    for folder in given.folders:
        shutil.rmtree(JARS / folder, ignore_errors=True)
        (arriving / folder).rename(JARS / folder)
    arriving.rmdir()


if __name__ == "__main__":
    main()
