"""The gRPC front: the end points of `hasten.proto` over the same model as HTTP's.

`hasten_pb2` and `hasten_pb2_grpc` beside this file are generated from it when the package is
built. Exercised by `pytest tests/unit/api/test_grpc.py`.
"""

import os

# Before grpc is imported. Children of a server are new programs, never copies that go on calling;
# without this, grpc logs a line for each of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
