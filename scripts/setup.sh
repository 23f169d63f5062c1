#!/usr/bin/env bash
# Makes this folder ready to run on Debian 12: Debian packages, .venv, Python packages, compiled record kernel.
#   scripts/setup.sh broker   what a broker needs (make run)
#   scripts/setup.sh all      also the tests' clients and tools (make install, make test)
# Quick when nothing changed. What it cannot do it says, with the command that would.
set -euo pipefail

exec 9<"$0"
flock 9 # two terminals may start at once
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # not in every user's PATH: apt-get needs it, and mkfs.ext4 is found there

BROKER_PACKAGES=(python3-venv python3-dev gcc)
TEST_PACKAGES=(kcat openjdk-17-jdk-headless maven strace e2fsprogs etcd-server openssl iproute2 iptables libfaketime)
NEEDED_PYTHON=3.11
APT_INSTALL=(apt-get install -y --no-install-recommends)
STAMP=.venv/setup.stamp

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# --- What is to be done ---------------------------------------------------------------------------------------------

mode=${1:-}
case "$mode" in
broker | all) ;;
*) fail "usage: scripts/setup.sh broker|all" ;;
esac

# A virtual environment made for everything serves a broker as well: it is never taken back to less.
if [ "$mode" = broker ] && [ -f "$STAMP" ] && [ "$(cut -d' ' -f1 "$STAMP")" = all ]; then
    mode=all
    wanted_packages=broker
else
    wanted_packages=$mode
fi

# Everything the installed packages depend on. With a compiler that was missing before, the kernel is built after all.
fingerprint() {
    {
        cat pyproject.toml constraints.txt setup.py src/penstock/protocol/records/*.p[yx][xi] src/penstock/{runtime,storage}/*.pyx
        if is_there gcc && is_there python3-dev; then echo compiler; fi
    } | sha256sum | cut -d' ' -f1
}

python_is_new_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$NEEDED_PYTHON'.split('.'))))" 2>/dev/null
}

# The first Python that is new enough: the one in PATH (pyenv's, perhaps), then Debian's.
find_python() {
    local candidate
    for candidate in python3 "python$NEEDED_PYTHON" "/usr/bin/python$NEEDED_PYTHON" /usr/bin/python3; do
        if python_is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python $NEEDED_PYTHON or newer found (Debian: apt-get install python3)"
}

# --- Debian packages ------------------------------------------------------------------------------------------------

# By what a package is for, not by its name: a Python or a JDK from elsewhere serves as well.
is_there() {
    case "$1" in
    python3-venv) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
    python3-dev) [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ;;
    openjdk-17-jdk-headless) command -v javac >/dev/null ;;
    maven) command -v mvn >/dev/null ;;
    iproute2) command -v ip >/dev/null ;;
    etcd-server) command -v etcd >/dev/null ;;
    libfaketime) ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 ;; # clocks that tests set
    e2fsprogs) command -v mkfs.ext4 >/dev/null ;; # file systems in images, for power cuts
    *) command -v "$1" >/dev/null ;;
    esac
}

missing_packages() {
    local wanted=("${BROKER_PACKAGES[@]}") package
    if [ "$wanted_packages" = all ]; then
        wanted+=("${TEST_PACKAGES[@]}")
    fi
    for package in "${wanted[@]}"; do
        is_there "$package" || echo "$package"
    done
}

by_hand() { echo "apt-get update && ${APT_INSTALL[*]} $*"; }

install_debian_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        say "missing, and no apt-get here to install it: ${missing[*]}"
    elif [ "$(id -u)" -ne 0 ]; then
        say "missing, and only root can install it. As root, run: $(by_hand "${missing[@]}")"
    else
        say "installing ${missing[*]}"
        apt_get_install "${missing[@]}"
    fi
    explain_still_missing
}

# The lists of packages may be absent or too old on a fresh machine: they are fetched when the first try fails. A package
# that cannot be had keeps none of the others out: last, each is tried on its own.
apt_get_install() {
    local log package failed=()
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! "${APT_INSTALL[@]}" "$@" >"$log" 2>&1 && ! { apt-get update && "${APT_INSTALL[@]}" "$@"; } >"$log" 2>&1; then
        for package in "$@"; do
            "${APT_INSTALL[@]}" "$package" >"$log" 2>&1 && continue
            failed+=("$package")
            grep -m 1 '^E:' "$log" >&2 || tail -n 3 "$log" >&2
        done
    fi
    rm -f "$log"
    if [ "${#failed[@]}" -gt 0 ]; then
        say "apt-get failed (no network?). Run again later, or by hand: $(by_hand "${failed[@]}")"
    fi
}

# Only a virtual environment is a must. Without a compiler the pure-Python kernel serves; without a tool its tests are skipped.
explain_still_missing() {
    local package
    for package in $(missing_packages); do
        case "$package" in
        python3-venv) fail "cannot go on without python3-venv" ;;
        python3-dev | gcc) say "without $package the record kernel is not compiled: the broker runs, slower" ;;
        *) say "without $package the tests that need it are skipped" ;;
        esac
    done
}

# --- The virtual environment ----------------------------------------------------------------------------------------

make_virtual_environment() {
    if [ -x .venv/bin/python ] && python_is_new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    say "creating .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv
}

install_python_packages() {
    local what=.
    if [ "$mode" = all ]; then
        what='.[dev,etcd,spark]'
    fi
    say "installing Python packages ($mode)"
    # As PIP_CONSTRAINT the pins hold in the isolated build environment too, where Cython and setuptools come from.
    # (Newer versions of pip take PIP_BUILD_CONSTRAINT for that, older ones do not know it.)
    if ! PIP_CONSTRAINT="$PWD/constraints.txt" PIP_BUILD_CONSTRAINT="$PWD/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1 \
        .venv/bin/python -m pip install --quiet --editable "$what"; then
        fail "pip could not install the packages (no network?). Run again later: scripts/setup.sh $mode"
    fi
}

# Spark puts zips of pyspark's sources before what is installed, and each of its Python processes compiles them anew, which
# takes longer than all else that it does. Without the zips it imports the installed modules, which pip has compiled.
leave_pyspark_compiled() {
    rm -f .venv/lib/python*/site-packages/pyspark/python/lib/{pyspark,py4j-*-src}.zip
}

kernel_kind() {
    .venv/bin/python -c 'from penstock.protocol.records import KERNEL; print(KERNEL)' 2>/dev/null || echo missing
}

# Exit code 3 means out of reach, which was said: the tests that need the jars are skipped then.
fetch_jars() { scripts/fetch_jars.sh >&2 || [ $? -eq 3 ]; }

# --- In order -------------------------------------------------------------------------------------------------------

python=$(find_python)
if [ -x .venv/bin/python ] && python_is_new_enough .venv/bin/python; then
    # Whether headers are missing depends on the Python that .venv was made from.
    python=$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
fi

install_debian_packages
wanted="$mode $(fingerprint)"
if [ ! -f "$STAMP" ] || [ "$(cat "$STAMP")" != "$wanted" ]; then
    make_virtual_environment
    install_python_packages
    if [ "$(kernel_kind)" != compiled ]; then
        say "the record kernel is not compiled: the pure-Python one serves"
    fi
    echo "$wanted" >"$STAMP"
fi
# Where PYTHONDONTWRITEBYTECODE is set nobody else would keep it, and a start take twice as long.
.venv/bin/python -m compileall -q src
if [ "$wanted_packages" = all ]; then
    leave_pyspark_compiled
    fetch_jars
fi
