"""Clients for fault tests: processes that write histories (tests/history), and may be killed at any moment.

    python -m tests.chaos.workers.<kind> '<options as JSON>'

SIGTERM ends a worker in good order, with exit code 0. None of them checks anything: whatever a broker does to them is
written down, and judged by the checker.
"""
