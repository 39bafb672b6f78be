"""The gRPC front: the end points of `hasten.proto` over the same model as HTTP's.

`hasten_pb2` and `hasten_pb2_grpc` beside this file are generated from it when the package is
built. Exercised by `pytest tests/server/test_grpc.py`.
"""
