"""The entry point: `penstock serve` and `penstock up` run brokers, everything else is a tool.

A broker must be up within a second and in tens of megabytes, so these two are parsed without the packages that the
tools are built with; their help, and every other command, comes from `app`.
"""

from __future__ import annotations

import sys


def main() -> None:
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["serve"] and "--help" not in arguments:
        from penstock.cli.serve import serve

        sys.exit(serve(arguments))
    if command == ["up"] and "--help" not in arguments:
        from penstock.cli.up import up

        sys.exit(up(arguments))
    from penstock.cli.app import run

    run()


if __name__ == "__main__":
    main()
