"""Chunking of long bodies at row boundaries, by the server (uploads) and the client (files).

chunks.py          chunkers of all formats
buffer.py          bytes that are not chunked yet
arrow_messages.py  messages of an Arrow stream

Imports no kernels, so that the client starts fast.
"""
