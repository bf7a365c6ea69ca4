// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Calls virtual functions, one of which throws now and then.

#include <cstdio>
#include <stdexcept>
#include <vector>

struct Shape {
	virtual double area(int i) = 0;
	virtual ~Shape() = default;
};

struct Plain : Shape {
	__attribute__((noinline)) double area(int i) override {
		double sum = 0;
		for (int k = 0; k < 200; k++) {
			sum += k / (i + 1.0);
		}
		return sum;
	}
};

struct Throwing : Shape {
	Plain plain;
	__attribute__((noinline)) double area(int i) override {
		char text[256];
		snprintf(text, sizeof text, "%d", i);
		if (i % 37 == 0) {
			throw std::runtime_error(text);
		}
		return plain.area(i) + text[0];
	}
};

__attribute__((noinline)) double twice(Shape &s, int i) { return s.area(i) * 2; }

__attribute__((noinline)) double sum(const std::vector<Shape *> &shapes, int i) {
	double total = 0;
	for (Shape *s : shapes) {
		try {
			total += twice(*s, i);
		} catch (const std::exception &e) {
			total += e.what()[0];
		}
	}
	return total;
}

int main() {
	std::vector<Shape *> shapes{new Plain, new Throwing};
	volatile double total = 0;
	for (int i = 0;; i++) {
		total = total + sum(shapes, i);
	}
}
