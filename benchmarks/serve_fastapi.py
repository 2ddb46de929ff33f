"""The handler of `POST /v1/sample` in FastAPI, on the same server program: the peer of `benchmarks.serve`."""

import socket
import sys

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import softindex


class Body(BaseModel):
    """What the benchmark sends."""

    queries: list[list[float]]
    n: int = 1
    temperature: float
    seed: int


class Answer(BaseModel):
    """What softindex answers."""

    ids: list[list[int]]
    log_prob: list[list[float]]
    error: list[float]
    log_partition: list[float]
    items_scored: list[int]
    method: str
    seed: int


def make_app(path):
    """The application."""
    index, app = softindex.load(path), FastAPI()

    @app.post("/v1/sample")
    async def sample(body: Body) -> Answer:
        queries = np.array(body.queries, np.float32)
        draws = index.sample(queries, body.n, temperature=body.temperature, seed=body.seed, threads=1)
        return Answer(
            ids=draws.ids.tolist(),
            log_prob=draws.log_prob.tolist(),
            error=draws.error.tolist(),
            log_partition=draws.log_partition.value.tolist(),
            items_scored=draws.items_scored.tolist(),
            method=draws.method,
            seed=draws.seed,
        )

    return app


def main():
    """Serve the index at the path that is given."""
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"serving on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        make_app(sys.argv[1]), loop="uvloop", http="httptools", log_level="critical", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
