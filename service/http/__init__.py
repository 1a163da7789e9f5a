"""HTTP from the socket to the route: limits of clients, API keys, bodies, problems, responses.

protocol.py, short_request.py           uvicorn's protocol with limits; requests without ASGI
connection_limits.py, body_memory.py    number of connections, slow clients; memory of bodies
request_log.py                          ids of requests, access log, spans
cors.py, head_checks.py, overload.py    other origins; refusals before the body is read
access.py, api_keys.py, rate_limits.py  authentication, scopes, rate limits
request_head.py, request_body.py        headers, query, keys; bodies within limits
send.py, etag.py                        responses
exceptions_to_problems.py               exceptions as problem+json
framework_errors.py                     the same for FastAPI's routes
openapi.py                              OpenAPI document
"""
