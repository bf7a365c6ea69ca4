# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0

"""Computes until its standard input is closed."""

import sys
import threading


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class Basket:
    def total(self, n):
        return sum(i % 7 for i in range(n))


closed = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), closed.set())).start()
print("ready", flush=True)
while not closed.is_set():
    fib(15)
    Basket().total(1000)
