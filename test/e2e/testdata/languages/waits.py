# Four threads wait for 40 ms in one function and for 20 ms in another. The main thread uses
# CPU time.
import threading
import time


def forty():
    time.sleep(0.040)


def twenty():
    time.sleep(0.020)


def waiter():
    while True:
        forty()
        twenty()


def main():
    for _ in range(4):
        threading.Thread(target=waiter, daemon=True).start()
    while True:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        time.sleep(0.002)


main()
