"""pyarrow and SGDClassifier.partial_fit in a FastAPI process; nothing is durable."""

import numpy as np
import pyarrow as pa
from fastapi import FastAPI, Request
from sklearn.linear_model import SGDClassifier

app = FastAPI()
model = SGDClassifier()


@app.post("/models/bulk/learn")
async def learn(request: Request) -> dict[str, int]:
    table = pa.ipc.open_stream(await request.body()).read_all()
    x, y = rows_of(table)
    model.partial_fit(x, y, classes=[-1.0, 1.0])
    return {"count": len(y)}


def rows_of(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Features of each row, and its label."""
    columns = table.drop_columns(["y"]).columns
    return np.column_stack([column.to_numpy() for column in columns]), table.column("y").to_numpy()
