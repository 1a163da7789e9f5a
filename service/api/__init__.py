"""HTTP routes of the server: each parses a request, makes one call and formats the answer.

learn_and_predict.py                     ASGI routes of learn, predict and events, before FastAPI
models.py, versions.py, members.py ...   one FastAPI router for each resource
access.py, api_keys.py, rate_limits.py   authentication, scopes, rate limits
exceptions_to_problems.py                exceptions as problem+json
request_body.py, responses.py            bodies and rows; answers of learn and predict
common.py, etag.py, views.py             what several routers share
openapi.py                               OpenAPI document
"""
