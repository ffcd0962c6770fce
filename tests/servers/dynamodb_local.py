"""DynamoDB Local, Amazon's own: unlike dynalite it has transactions.

A Java program, from Maven Central: `python -m tests.servers.setup` puts it into
.tools/dynamodb-local, where Java and Maven are. It listens on all addresses of the machine, and has
no option for that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .dynalite import DynamoDBServer
from .process import TOOLS, MissingError, environment

VERSION = "2.6.0"
INSTALL = TOOLS / "dynamodb-local" / VERSION
_JAR = f"DynamoDBLocal-{VERSION}.jar"
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
# For a program that lives for minutes, Java's second compiler costs more than it saves.
_BRIEF = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>dynamodb-local</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>com.amazonaws</groupId>
      <artifactId>DynamoDBLocal</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class DynamoDBLocal(DynamoDBServer):
    """In memory: what it holds is gone with it."""

    name = "dynamodb-local"
    startup_seconds = 60.0

    @staticmethod
    def locate() -> Path:
        java = shutil.which("java")
        if java is None:
            raise MissingError("a Java runtime, 17 or later", "apt-get install default-jre")
        if not (INSTALL / _JAR).is_file():
            raise MissingError("DynamoDB Local", "python -m tests.servers.setup")
        return Path(java)

    def command(self) -> list[str]:
        libraries = [f"-Djava.library.path={INSTALL}", "-cp", f"{INSTALL}/*"]
        options = ["-inMemory", "-sharedDb", "-port", str(self.port)]
        return [str(self.locate()), "-Xmx256m", *_BRIEF, *libraries, _MAIN, *options]

    def popen_options(self) -> dict[str, Any]:
        return {"env": environment(DDB_LOCAL_TELEMETRY="0")}


def install() -> None:
    """Download it, with all that it needs. Without it, its tests are skipped."""
    maven = shutil.which("mvn")
    if shutil.which("java") is None or maven is None:
        print("DynamoDB Local: left out, since it needs Java and Maven")
        return
    if (INSTALL / _JAR).is_file():
        print("DynamoDB Local: up to date")
        return
    folder = INSTALL.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM)
    copying = ["dependency:copy-dependencies", f"-DoutputDirectory={INSTALL}"]
    done = subprocess.run(
        [maven, "--quiet", "--batch-mode", *copying, "-DincludeScope=runtime"],
        cwd=folder,
        env={**os.environ, "MAVEN_OPTS": " ".join((os.environ.get("MAVEN_OPTS", ""), *_BRIEF))},
        check=False,
    )
    print(f"DynamoDB Local: {'left out, see above' if done.returncode else 'installed'}")
