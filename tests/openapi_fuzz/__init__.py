"""API description test: schemathesis compares a server with its `/openapi.json`.

    python -m tests.openapi_fuzz [--cases 20000]

runs rounds up to this number of cases and writes its section of load_tests/SECURITY.md.
"""
