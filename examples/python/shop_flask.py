"""A service with Flask: each order is charged once, and one report of a day is made at a time.

    DIBS_SERVER=unix:/tmp/dibs.sock PYTHONPATH=clients/python python3 examples/python/shop_flask.py
"""
import itertools
import os

import dibs
from flask import Flask, jsonify
from werkzeug.serving import make_server

app = Flask(__name__)
keys = dibs.connect()  # one for the program: threads share it, and each worker of gunicorn has its own connections
charges = itertools.count(1)


@app.post("/orders/<order>/charge")
def charge(order):
    result = keys.once(f"order {order}", lambda: {"charge": next(charges)}, keep="24h", with_origin=True)
    return jsonify(result.value), 200 if result.replayed else 201


@app.post("/reports/<day>")
def report(day):
    with keys.lock(f"report {day}", wait=0) as lease:
        return jsonify(fence=lease.fence)


@app.errorhandler(dibs.Held)
def held(error):
    return "", 409, {"Retry-After": "1"}


if __name__ == "__main__":
    server = make_server("127.0.0.1", int(os.environ.get("PORT", "5000")), app, threaded=True)
    print("listening on", server.server_port, flush=True)
    server.serve_forever()
