"""The entry point: `penstock serve` starts a broker, everything else is a tool.

A broker must be up within a second and in tens of megabytes, so `serve` is parsed here without the packages that the
tools are built with; its help, and every other command, comes from `app`.
"""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and "--help" not in arguments:
        from penstock.cli.serve import serve

        sys.exit(serve(arguments[1:]))
    from penstock.cli.app import run

    run()


if __name__ == "__main__":
    main()
