"""The alternative to fastcaps serve: FastAPI around the PyTorch network with dynamic routing."""

import io
import socket
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request
from PIL import Image

from fastcaps import CapsNet

app = FastAPI()
model = CapsNet.from_pretrained("mnist")


@app.post("/predict")
async def predict(request: Request) -> dict[str, Any]:
    pixels = np.asarray(Image.open(io.BytesIO(await request.body())))
    with torch.no_grad():
        lengths = model(torch.from_numpy(pixels.copy())[None, None]).lengths[0]
    return {"class": int(lengths.argmax()), "lengths": lengths.tolist()}


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", backlog=2048))
    server.run(sockets=[listener])
