// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// A program that throws and catches for a minute, through virtual calls,
// containers and destructors, in two threads.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static volatile unsigned sink;

struct Shape {
	virtual ~Shape() = default;
	virtual unsigned area(unsigned depth) const = 0;
};

struct Square : Shape {
	std::string name = "a name that is too long to be kept in place";
	unsigned area(unsigned depth) const override
	{
		std::string copy = name;
		unsigned x = depth;
		for (unsigned i = 0; i < 2000; i++)
			x = x * 1664525u + 1013904223u;
		if (depth == 0)
			throw std::runtime_error(copy + std::to_string(x));
		return x + copy.size();
	}
};

__attribute__((noinline)) static unsigned descend(const Shape &shape, unsigned depth)
{
	std::vector<unsigned> numbers(50, depth);
	if (depth > 0)
		numbers.push_back(descend(shape, depth - 1));
	numbers.push_back(shape.area(depth));
	return *std::max_element(numbers.begin(), numbers.end());
}

__attribute__((noinline)) static unsigned contained()
{
	std::map<std::string, unsigned> counts;
	for (unsigned i = 0; i < 100; i++)
		counts[std::to_string(i * 7919 % 101)] += i;
	std::vector<std::function<unsigned(unsigned)>> functions;
	for (unsigned i = 0; i < 10; i++)
		functions.push_back([i, &counts](unsigned x) { return x + i + (unsigned)counts.size(); });
	std::sort(functions.begin(), functions.end(), [](auto &a, auto &b) { return a(1) < b(1); });
	return functions[3](2);
}

static void work()
{
	std::unique_ptr<Shape> shape = std::make_unique<Square>();
	for (unsigned i = 0;; i++) {
		try {
			sink = sink + descend(*shape, i % 30);
		} catch (const std::runtime_error &e) {
			sink = sink + (unsigned)std::string(e.what()).size();
		}
		sink = sink + contained();
	}
}

int main()
{
	alarm(60);
	std::thread other(work);
	work();
}
