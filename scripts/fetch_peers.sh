#!/usr/bin/env bash
# Brings the brokers that the benchmark compares with, NATS and RabbitMQ, from Debian's packages. Only benchmarks call it:
# without a peer, its column says so and its tests are skipped. Quick when both are there.
# The packages' own services are neither started nor left to start with the machine: the benchmark starts its own.
# Exit codes: 0 all there; 3 something is out of reach, which is said with the command that would bring it.
set -euo pipefail

exec 9<"$0"
flock 9 # two benchmarks may start at once
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # not in every user's PATH: apt-get needs it, and the peers may be there

OUT_OF_REACH=3
PEERS=(nats-server rabbitmq-server) # each package is called like its command
APT_INSTALL=(apt-get install -y --no-install-recommends)
POLICY=/usr/sbin/policy-rc.d # asked by Debian's packages before they start a service; 101 means no

say() { printf 'fetch_peers: %s\n' "$*" >&2; }

missing_peers() {
    local peer
    for peer in "${PEERS[@]}"; do
        command -v "$peer" >/dev/null || echo "$peer"
    done
}

forbid_services() {
    [ -e "$POLICY" ] && return
    printf '#!/bin/sh\nexit 101\n' >"$POLICY"
    chmod +x "$POLICY"
    trap 'rm -f "$POLICY"' EXIT
}

# The lists of packages may be absent or too old on a fresh machine: they are fetched when the first try fails. Each on its
# own, so that one that cannot be had does not keep out the other.
install_peer() {
    local peer=$1 log
    log=$(mktemp)
    say "installing $peer"
    if ! "${APT_INSTALL[@]}" "$peer" >"$log" 2>&1 && ! { apt-get update && "${APT_INSTALL[@]}" "$peer"; } >"$log" 2>&1; then
        grep -m 1 '^E:' "$log" >&2 || tail -n 3 "$log" >&2
    fi
    rm -f "$log"
    if command -v systemctl >/dev/null; then
        systemctl disable "$peer" >/dev/null 2>&1 || true # a package without a service is as good
    fi
}

mapfile -t missing < <(missing_peers)
[ "${#missing[@]}" -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null; then
    say "missing, and no apt-get here to install it: ${missing[*]}"
elif [ "$(id -u)" -ne 0 ]; then
    say "missing, and only root can install it: ${missing[*]}"
else
    forbid_services
    export DEBIAN_FRONTEND=noninteractive
    for peer in "${missing[@]}"; do
        install_peer "$peer"
    done
fi

mapfile -t missing < <(missing_peers)
if [ "${#missing[@]}" -gt 0 ]; then
    say "the benchmark goes on without ${missing[*]}. As root, run: apt-get update && ${APT_INSTALL[*]} ${missing[*]}"
    exit "$OUT_OF_REACH"
fi
