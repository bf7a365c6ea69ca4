<?php
// Three methods use 60, 30 and 10 percent of the CPU time. A turn takes 7.1 ms, so that it
// is not in lockstep with the periods of a CPU quota.

function cpu(): float
{
    $usage = getrusage();
    return $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec'] + ($usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec']) / 1e6;
}

function until(callable $work, float $seconds): void
{
    for ($end = cpu() + $seconds; cpu() < $end;) {
        $work();
    }
}

class Work
{
    public function sixty(): void
    {
        until(fn () => array_sum(array_map(fn ($i) => $i * $i, range(1, 1000))), 0.00426);
    }

    public function thirty(): void
    {
        until(fn () => strlen(json_encode(range(1, 1000))), 0.00213);
    }

    public static function ten(): void
    {
        until(fn () => preg_replace_callback('/[a-f]/', fn ($m) => strtoupper($m[0]), str_repeat('abcdefghijkl', 10)), 0.00071);
    }
}

function main(): void
{
    $work = new Work();
    while (true) {
        $work->sixty();
        $work->thirty();
        Work::ten();
    }
}

main();
