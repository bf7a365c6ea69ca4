# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0

# Functions, generators, sorting, regular expressions and JSON, for a minute.
import json
import re
import time


def down(n):
    return n if n == 0 else down(n - 1) + sum(x * x for x in range(20))


until = time.monotonic() + 60
while time.monotonic() < until:
    values = [down(i % 10) for i in range(50)]
    values.sort(key=lambda v: str(v)[::-1])
    text = json.dumps({str(v): v for v in values})
    json.loads(re.sub(r"(\d)(\d)", r"\2\1", text).replace("0", "1"))
