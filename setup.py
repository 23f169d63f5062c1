"""Builds the compiled parts; everything else about the package is in pyproject.toml.

They are optional: without a C compiler the install goes on, and what they do is done in plain Python.
"""

from setuptools import Extension, setup

RECORDS = "src/penstock/protocol/records"

setup(
    ext_modules=[
        Extension(
            f"penstock.protocol.records.{name}",
            [f"{RECORDS}/{name}.pyx"],
            depends=[f"{RECORDS}/{part}.pxi" for part in ("_arrow", "_growing", "_handing", "_reading")],
            extra_compile_args=["-O2"],
            optional=True,
        )
        for name in ("_kernel", "_compaction", "_columns", "_checksum", "_gathering")
    ]
    + [
        Extension(
            "penstock.storage._finding",
            ["src/penstock/storage/_finding.pyx"],
            define_macros=[("_GNU_SOURCE", None)],  # preadv2
            extra_compile_args=["-O2"],
            optional=True,
        ),
        Extension(
            "penstock.runtime._syncs",
            ["src/penstock/runtime/_syncs.pyx"],
            extra_compile_args=["-O2", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
    ]
)
