"""Builds the compiled record kernels; everything else about the package is in pyproject.toml.

The extensions are optional: without a C compiler the install goes on and their pure-Python twins serve.
"""

from setuptools import Extension, setup

RECORDS = "src/penstock/protocol/records"

setup(
    ext_modules=[
        Extension(
            f"penstock.protocol.records.{name}",
            [f"{RECORDS}/{name}.pyx"],
            depends=[f"{RECORDS}/_reading.pxi"],
            extra_compile_args=["-O2"],
            optional=True,
        )
        for name in ("_kernel", "_compaction")
    ]
)
