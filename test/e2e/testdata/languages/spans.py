# A thread publishes a span while it runs first, another span while it runs second, and no
# span while it runs third. The first argument is the library built from spans.c.
import ctypes
import mmap
import os
import struct
import sys
import threading
import time


def field(number, value):
    return bytes([number << 3 | 2, len(value)]) + value


def publish_context():
    schema = field(1, b"threadlocal.schema_version") + field(2, field(1, b"tlsdesc_v1_dev"))
    keys = b"".join(field(1, field(1, key)) for key in (b"datadog.local_root_span_id", b"http.route"))
    names = field(1, b"threadlocal.attribute_key_map") + field(2, field(5, keys))
    message = field(2, schema) + field(2, names)
    fd = os.memfd_create("OTEL_CTX")
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[32 : 32 + len(message)] = message
    memory[:32] = b"OTEL_CTX" + struct.pack("<IIQQ", 2, len(message), time.monotonic_ns(), address + 32)
    return memory


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(i * i for i in range(100))


def first():
    library.publish(1)
    burn(0.030)
    library.withdraw()


def second():
    library.publish(2)
    burn(0.012)
    library.withdraw()


def third():
    burn(0.010)


def main():
    while True:
        first()
        second()
        third()


library = ctypes.CDLL(sys.argv[1])
context = publish_context()
threading.Thread(target=main).start()
