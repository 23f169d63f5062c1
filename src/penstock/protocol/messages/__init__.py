"""Every message that the broker understands: each class is the layout of one message in all its versions.

How to add a message:

1. Take its layout from the protocol's documentation and declare it in the file of its family, structs before their use:

       class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible=4):
           group_id: str = string()
           group_instance_id: str | None = string(versions="3+", nullable="3+")

       class HeartbeatResponse(Response, to=HeartbeatRequest):
           throttle_time_ms: int = int32(versions="1+")
           error_code: int = int16()

   Names are Kafka's in snake_case, in the order of the wire; a field's version range is left out when the message has
   it in all versions that we know. `schema` has the types.
2. Add the pair to MESSAGES in `table`.
3. Add its range to the table in tests/protocol/test_messages.py, which then compares every version with kio.

Nothing is imported here: whoever needs a few messages does not wait for all of them to be built.
"""
