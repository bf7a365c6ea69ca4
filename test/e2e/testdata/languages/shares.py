# Three methods use 60, 30 and 10 percent of the CPU time. A turn takes 7.1 ms, so that it
# is not in lockstep with the periods of a CPU quota.
import json
import re
import time

DATA = {str(i): [i] * 10 for i in range(30)}


def until(work, seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        work()


class Work:
    def sixty(self):
        until(lambda: sum(i * i for i in range(100)), 0.00426)

    def thirty(self):
        until(lambda: json.dumps(DATA), 0.00213)

    def ten(self):
        until(lambda: re.sub("[a-f]", self.upper, "abcdefghijkl"), 0.00071)

    def upper(self, match):
        return match.group(0).upper()


def main():
    work = Work()
    while True:
        work.sixty()
        work.thirty()
        work.ten()


main()
