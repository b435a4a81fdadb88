"""Compile src/java into the jar that the package brings along; it does nothing where the jar has these sources.

    ONCEONLY_JARS=.jars onceonly jars fetch spark compiler; python tools/compile_java.py

One compiler, Eclipse's, which needs no JDK, and a jar without times and owners: the same sources give the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from build_hook import source_version

from onceonly.settings import Settings
from onceonly.spark import jvm, jvm_jar

SOURCES = Path(__file__).parent.parent / "src" / "java"
JAVA = "17"  # the oldest that Spark 4 takes
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of a zip file


def main() -> None:
    version = source_version(SOURCES)
    if jvm_jar.packaged_version() == version:
        return
    with TemporaryDirectory() as folder:
        compile_classes(Path(folder))
        (Path(folder) / jvm_jar.VERSION).write_text(version, encoding="ascii")
        write_jar(Path(folder), jvm_jar.PACKAGED)
    print(f"{jvm_jar.PACKAGED.name}: compiled from sources {version}")


def compile_classes(folder: Path) -> None:
    settings, java = Settings.from_env(), jvm.java_command()
    compilers = sorted((settings.jars / "compiler").glob("ecj-*.jar"))
    if not java or not compilers:
        sys.exit("Java or the compiler is missing. Fetch the compiler: onceonly jars fetch compiler")
    class_path = [*jvm.list_jars(settings.jars), *map(str, sorted((jvm.spark_home() / "jars").glob("*.jar")))]
    command = [java, "-jar", str(compilers[-1]), "-source", JAVA, "-target", JAVA, "-proc:none", "-nowarn", "-g"]
    subprocess.run([*command, "-classpath", os.pathsep.join(class_path), "-d", str(folder), str(SOURCES)], check=True)


def write_jar(folder: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = zipfile.ZipInfo(str(file.relative_to(folder)), FIRST_DAY)
                name.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(name, file.read_bytes())


if __name__ == "__main__":
    main()
