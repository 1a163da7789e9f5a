"""The server process: application, uvicorn, workers, compiled kernels."""
