#!/usr/bin/env bash
# Brings the jars of tests/compat/java/pom.xml into .jars/lib, those of tests/spark/java/pom.xml into .jars/spark, those of
# tests/spark/java/hdfs/pom.xml into .jars/hdfs and those of tests/spark/java/s3/pom.xml into .jars/s3, and compiles the Java test
# driver and the Java example into .jars/driver.jar; one of the four with the argument `kafka`, `spark`, `hdfs` or `s3`. Where pyspark is installed, local files for its tests
# (.jars/local-files.jar) and an archive of Spark's classes come with `spark`. Quick when all are there already. Exit codes:
# 0 ready; 3 Maven or a JDK is missing or out of reach (the tests that need the jars are skipped then); anything else is an
# error in the sources.
set -euo pipefail

OUT_OF_REACH=3
project=$(cd "$(dirname "$0")/.." && pwd)
sources="$project/tests/compat/java"
examples="$project/examples"
jars="$project/.jars"

say() { printf 'fetch_jars: %s\n' "$*"; }

out_of_reach() {
    say "$*"
    say "The tests that need them will be skipped."
    exit "$OUT_OF_REACH"
}

# What the folder was made from; compared with the stamp to know whether there is anything to do.
fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }
stamped() { [ -f "$jars/$1.stamp" ] && [ "$(cat "$jars/$1.stamp")" = "$2" ]; }

# fetch WHAT POM FOLDER: unless the folder was made from that pom already.
fetch() {
    local what=$1 pom=$2 folder=$3 log="$jars/maven.log" wanted
    wanted=$(fingerprint "$pom")
    stamped "$folder" "$wanted" && return
    command -v mvn >/dev/null || out_of_reach "Maven is not installed (Debian: apt-get install maven)."
    say "fetching $what with Maven"
    rm -rf "${jars:?}/$folder"
    # Maven on a machine without network tries for a long time; a healthy download takes a minute.
    if ! timeout 600 mvn -q -B -f "$pom" dependency:copy-dependencies \
        -DoutputDirectory="$jars/$folder" -DincludeScope=runtime >"$log" 2>&1; then
        grep -m 1 ERROR "$log" || true
        out_of_reach "Maven could not bring $what (its output: .jars/maven.log)."
    fi
    echo "$wanted" >"$jars/$folder.stamp"
}

compile() {
    command -v javac >/dev/null || out_of_reach "javac is not installed (Debian: apt-get install openjdk-17-jdk-headless)."
    say "compiling the Java test driver and example"
    rm -rf "$jars/classes"
    mkdir -p "$jars/classes"
    javac -Xlint:all,-classfile,-processing -Werror -proc:none -d "$jars/classes" -cp "$jars/lib/*" \
        "$sources"/*.java "$examples"/*.java
    jar --create --file "$jars/driver.jar" -C "$jars/classes" .
}

# Classes as a JVM has them in memory: half of the processor time of each start is spent on reading them otherwise.
archive() {
    rm -f "$jars/classes.jsa"
    java -XX:+UseSerialGC -XX:ArchiveClassesAtExit="$jars/classes.jsa" -cp "$jars/lib/*:$jars/driver.jar" WarmUp \
        >"$jars/archive.log" 2>&1 || say "no archive of classes, the tests start Java more slowly (.jars/archive.log)"
}

# Nothing is missing without either, but time.
quicken_spark() {
    local wanted pyspark source="$project/tests/spark/java/LocalFiles.java"
    [ -x "$project/.venv/bin/python" ] || return 0
    pyspark=$("$project/.venv/bin/python" -c 'import pyspark; print(pyspark.__path__[0])' 2>/dev/null) || return 0
    command -v java >/dev/null || return 0
    wanted=$({
        cat "$project/constraints.txt" "$project/tests/spark/jvm.py" "$source"
        java -version 2>&1
        echo "$project"
    } | sha256sum | cut -d' ' -f1)
    stamped spark-classes "$wanted" && return
    compile_local_files "$pyspark" "$source"
    archive_spark "$wanted"
}

compile_local_files() {
    local pyspark=$1 source=$2 classes="$jars/local-files"
    command -v javac >/dev/null || return 0
    rm -rf "$classes" "$classes.jar"
    mkdir "$classes"
    javac -Xlint:all,-classfile,-processing,-path -Werror -proc:none -d "$classes" -cp "$pyspark/jars/*" "$source"
    jar --create --file "$classes.jar" -C "$classes" .
}

archive_spark() {
    local wanted=$1
    say "making an archive of Spark's classes"
    if (cd "$project" && timeout 300 .venv/bin/python -m tests.spark.jvm) >"$jars/spark-classes.log" 2>&1; then
        echo "$wanted" >"$jars/spark-classes.stamp"
    else
        say "no archive of Spark's classes, its tests start more slowly (.jars/spark-classes.log)"
    fi
}

# Its web server reads every jar with a part of HDFS in it from end to end, several times, for what it is to serve: half of the
# time of its start, unless there is nothing to inflate.
quicken_hdfs() {
    local unpacked="$jars/hdfs/unpacked" packed
    [ -d "$jars/hdfs" ] && command -v jar >/dev/null || return 0
    for packed in "$jars"/hdfs/*.jar; do
        rm -rf "$unpacked"
        mkdir "$unpacked"
        (cd "$unpacked" && jar --extract --file "$packed")
        jar --create --no-compress --no-manifest --file "$packed.draft" -C "$unpacked" .
        mv "$packed.draft" "$packed"
    done
    rm -rf "$unpacked"
}

mkdir -p "$jars"
exec 9>"$jars/lock"
flock 9 # two test workers may come here at once

which=${1:-all}
asked_for() { [ "$which" = all ] || [ "$which" = "$1" ]; }
if asked_for kafka; then
    fetch "Kafka's jars" "$sources/pom.xml" lib
    classes_wanted=$(fingerprint "$sources/pom.xml" "$sources"/*.java "$examples"/*.java)
    if ! stamped classes "$classes_wanted"; then
        compile
        archive
        echo "$classes_wanted" >"$jars/classes.stamp"
    fi
fi
if asked_for spark; then
    quicken_spark
    fetch "Spark's own Kafka connector" "$project/tests/spark/java/pom.xml" spark
fi
if asked_for hdfs; then
    hdfs_wanted=$(fingerprint "$project/tests/spark/java/hdfs/pom.xml")
    if ! stamped hdfs "$hdfs_wanted"; then
        fetch "Hadoop's HDFS" "$project/tests/spark/java/hdfs/pom.xml" hdfs
        quicken_hdfs
    fi
fi
if asked_for s3; then
    fetch "Hadoop's client of S3" "$project/tests/spark/java/s3/pom.xml" s3
fi
