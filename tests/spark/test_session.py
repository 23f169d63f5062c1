"""What a session is set up with. A process has one session, so these have processes of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

_SAYS_HOW_IT_SHUFFLES = """
from penstock.spark import session
for settings in ({}, {"spark.sql.shuffle.partitions": "200"}):
    spark = session("shuffling", "local[3]", {"spark.ui.enabled": "false", **settings})
    print(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    print(session().conf.get("spark.sql.shuffle.partitions"))
    spark.stop()
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java here: Spark cannot be tried")
def test_given_one_machine_when_a_session_is_made_then_it_shuffles_for_its_cores_unless_somebody_says_otherwise() -> (
    None
):
    said = subprocess.run(
        [sys.executable, "-c", _SAYS_HOW_IT_SHUFFLES], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )

    assert said.stdout.split() == ["6", "7", "200", "7"]
