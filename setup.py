"""Builds the compiled record kernel; everything else about the package is in pyproject.toml.

The extension is optional: without a C compiler the install goes on and the pure-Python twin serves.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "penstock.protocol.records._kernel",
            ["src/penstock/protocol/records/_kernel.pyx"],
            extra_compile_args=["-O2"],
            optional=True,
        )
    ]
)
