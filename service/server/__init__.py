"""The server process: application, uvicorn, worker processes, compiled kernels.

`app.py` composes the application; it is the one place where all parts are wired together.
`serve.py` runs it under uvicorn in one process. `workers.py` runs several of these processes on
one port. `stop_signals.py` says which signals stop them. `compile_kernels.py` fills the kernel
cache ahead of time.
"""
