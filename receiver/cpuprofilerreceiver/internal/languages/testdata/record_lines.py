# Records the tables of lines of some functions, and the line of each instruction as this
# Python's own dis has it: one function a line, "name first table lines", where table is in
# hexadecimal and lines is, for each two bytes of code, the line or 0.
import dis
import sys


def straight(a):
    b = a + 1
    c = b * 2
    return b + c


def loops(n):
    total = 0
    for i in range(n):
        if i % 2:
            continue
        total += (
            i *
            2
        )
    return total


def handlers(n):
    try:
        return 1 / n
    except ZeroDivisionError as e:
        print(e)
        raise
    finally:
        with open("/dev/null") as f:
            f.read()


def generator(n):
    for i in range(n):
        yield i

    yield from (x * x
                for x in range(n))


async def coroutine(n):
    async with n as m:
        await m
    async for i in n:
        print(i)


def backwards(a, b): return [
    a
    for a in b
    if a] + sorted(b,
                   key=lambda k:
                   -k)


exec(compile("def far(a):\n" + "\n" * 300 + "    b = a\n" + "\n" * 200 + "    return b\n" , "<far>", "exec"))
exec(compile("def long(a):\n    a = [" + ", ".join("a%d" % i for i in range(400)) + "]\n    return a\n", "<long>", "exec"))
exec(compile("def many(a):\n" + "".join("    a += %d\n\n" % i for i in range(300)) + "    return a\n", "<many>", "exec"))


class Type:
    def method(self, *args, **kwargs):
        match = {k: v for k, v in kwargs.items()}
        while match:
            match.popitem()
        else:
            assert not match, \
                "message"
        return lambda: self


def codes(code, seen):
    yield code
    for c in code.co_consts:
        if hasattr(c, "co_code"):
            yield from codes(c, seen)


def record(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    lines = [0] * (len(code.co_code) // 2)
    if sys.version_info >= (3, 10):
        for start, end, line in code.co_lines():
            for i in range(start // 2, end // 2):
                lines[i] = line or 0
    else:
        line = code.co_firstlineno
        starts = dict(dis.findlinestarts(code))
        # findlinestarts leaves out starts of the line before.
        for i in range(len(lines)):
            line = starts.get(2 * i, line)
            lines[i] = line
    print(code.co_name.strip("<>"), code.co_firstlineno, table.hex() or "-", ",".join(map(str, lines)))


for f in [straight, loops, handlers, generator, coroutine, backwards, far, long, many, Type.method]:
    for code in codes(f.__code__, set()):
        record(code)
