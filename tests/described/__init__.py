"""What is served is held against what `/openapi.json` says of it, by schemathesis.

    python -m tests.described [--cases 20000]

makes cases until there are so many and writes its section of load_tests/SECURITY.md.
"""
