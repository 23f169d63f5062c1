#!/usr/bin/env bash
# Writes src/penstock/metadata/etcd_pb2.py and its types from etcd.proto (make protos). The result is committed, so that
# only who changes the .proto needs grpcio-tools.
set -euo pipefail

cd "$(dirname "$0")/.."
"${PYTHON:-.venv/bin/python}" -m grpc_tools.protoc --proto_path=src \
    --python_out=src --pyi_out=src penstock/metadata/etcd.proto
