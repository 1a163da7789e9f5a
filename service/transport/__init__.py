"""HTTP below ASGI: protocol, connections, memory of request bodies."""
