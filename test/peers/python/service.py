# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0

"""A service that OpenTelemetry's automatic instrumentation of Python watches: Flask.

It serves /work, which takes some CPU, and calls itself all the time. A line on its
standard input changes it; it answers with the same line when the change is in force. From
"slow" on /work takes long; from "fail" on it answers 500.
"""

import http.client
import logging
import sys
import threading
import time

from flask import Flask
from werkzeug.serving import make_server

app = Flask(__name__)
took, failing = 0.001, False


def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@app.route("/work/<item>")
def serve(item):
    work(took)
    return (item, 500) if failing else item


def call(port):
    while True:
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", "/work/7")
        c.getresponse().read()
        c.close()
        time.sleep(0.05)


logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
threading.Thread(target=call, args=(server.port,), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "slow":
        took = 0.1
    elif line.strip() == "fail":
        failing = True
    print(line, end="", flush=True)
