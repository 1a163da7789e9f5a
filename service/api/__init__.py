"""HTTP routes of the server: each parses a request, makes one call and formats the answer.

learn_and_predict.py                     ASGI routes of learn, predict and events, before FastAPI
short_requests.py                        learns and predictions of one row, without ASGI
models.py, sources.py ...                one FastAPI router for each resource
request_rows.py, responses.py            rows of bodies; answers of learn and predict
common.py, views.py                      what several routers share
"""
