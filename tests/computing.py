"""
In place of onnxruntime-web, whose 14 MB are not in this repository: a module with the same interface that has the
onnxruntime of Python compute, over loopback. It tells the graphs below a folder apart by their sizes.
"""

import json
from functools import cache
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

ENGINE = """
export const env = { wasm: {} };
export class Tensor {
  constructor(type, data, dims) { Object.assign(this, { type, data, dims }); }
}
export class InferenceSession {
  static async create(bytes) { return Object.assign(new InferenceSession(), { size: bytes.length }); }
  async run(feeds, wanted) {
    const plain = ([name, { type, data, dims }]) => [name, type, Array.from(data, Number), dims];
    const inputs = Object.entries(feeds).map(plain);
    const body = JSON.stringify({ size: this.size, inputs, wanted });
    const found = Object.entries(await (await fetch('compute', { method: 'POST', body })).json());
    const tensors = found.map(([name, [data, dims]]) => [name, new Tensor('float32', Float32Array.from(data), dims)]);
    return Object.fromEntries(tensors);
  }
}
"""


@cache
def session_of(file: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


class Handler(SimpleHTTPRequestHandler):
    """The files of a folder, and what the engine asks for."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        file = next(path for path in Path(self.directory).rglob("*.onnx") if path.stat().st_size == asked["size"])
        session = session_of(file)
        inputs = {name: np.array(values, kind).reshape(dims) for name, kind, values, dims in asked["inputs"]}
        found = zip(asked["wanted"], session.run(asked["wanted"], inputs), strict=True)
        answer = json.dumps({name: [values.flatten().tolist(), values.shape] for name, values in found}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
