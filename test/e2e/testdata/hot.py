# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0

# Computes until its parent is another one, so that it does not outlive it.
import os


def inner(n):
    return sum(x * x for x in range(n))


def outer():
    return [inner(n) for n in range(200)]


parent = os.getppid()
while os.getppid() == parent:
    outer()
