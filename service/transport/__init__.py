"""HTTP/1.1 below ASGI: protocol classes, connection limits, memory of request bodies.

http_protocol.py   uvicorn's protocol with limits of heads and problem documents for errors
body_protocol.py   long request bodies without copies
connection_limits.py     number of connections, timeouts of slow clients
body_memory.py     memory of bodies over all connections
"""
